"""Whole commands against plain scripts: an epoch of fine-tuning, answers for a folder of photos.

Each runs in a process of its own, from and to files, with the settings that it chooses by itself.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from pathlib import Path

from benchmarks import child, peers, photos, shapes
from benchmarks.asked import Asked
from benchmarks.plain_script import BATCH
from benchmarks.table import Section, compare
from patchwords.weights.store import save_pretrained

GOALS = {"train": 1.8, "predict": 2.0}
PHOTOS = 1000  # that are answered


def measure(asked: Asked) -> Section:
    section = Section("end_to_end")
    if asked.data is None and not asked.quick:
        section.remark("skipped, it needs photos (--data FOLDER)")
        return section
    plain = True
    try:
        peers.load("timm")
    except peers.Absent as absent:
        section.remark(str(absent))
        plain = False
    section.remark(
        "the plain script: timm, torchvision's transforms on Pillow, a DataLoader of 2 workers, "
        "fp32; ours: the command, its settings left to itself, with --precision auto"
    )
    shape = shapes.TINY if asked.quick else shapes.TI
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = asked.data or photos.make(folder / "made", 80)
        model = peers.random_model(shape.name, shape.image_size)
        own = save_pretrained(model, folder / "ours")
        theirs = peers.quietly(save_pretrained, model, folder / "theirs", format="timm")
        rounds = asked.rounds_or(3)
        add_training(section, shape, data, theirs if plain else None, folder / "run", rounds)
        chosen = copy_some(data, folder / "photos", 16 if asked.quick else PHOTOS)
        add_predict(section, shape, chosen, own, theirs if plain else None, rounds)
    return section


def add_training(
    section: Section, shape: shapes.Shape, data: Path, theirs: Path | None, run: Path, rounds: int
) -> None:
    """An epoch over all photos: seconds of its steps, waiting for data included."""
    count = len(photos.paths_of(data))
    steps = max(1, count // BATCH)
    words = (
        *("-m", "patchwords", "finetune", data, "--model", shape.name, "--gelu", "erf"),
        *("--image-size", shape.image_size, "--batch-size", BATCH, "--steps", steps),
        *("--optimizer", "adamw", "--lr", 1e-4, "--eval-every", steps, "--output", run),
        *("--precision", "auto", "--overwrite"),
    )
    found: dict[str, list[float]] = {"ours": [], "whole": [], "plain": []}
    for _ in range(rounds):
        found["whole"].append(child.run(words)[0])
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found["ours"].append(max(row["seconds"] for row in rows if row["kind"] == "train"))
        if theirs is not None:
            options = ("--steps", steps, "--size", shape.image_size)
            found["plain"].append(
                child.ask("plain_script", ("train", theirs, data, *options))["seconds"]
            )
    what = f"fine-tune {shape.title}, an epoch of {steps * BATCH:,} photos"
    peer = ("plain timm script", found["plain"]) if theirs is not None else None
    section.add(compare(what, "s", found["ours"], peer, goal=GOALS["train"]))
    section.remark(
        f"the whole command of fine-tuning, start, tests and report included: "
        f"{sum(found['whole']) / rounds:.1f} s"
    )


def copy_some(data: Path, to: Path, count: int) -> Path:
    """So many photos in a folder without classes; repeated where there are fewer."""
    to.mkdir()
    paths = photos.paths_of(data)
    for number in range(count):
        source = paths[number * 7919 % len(paths)]  # a prime: photos of all classes
        shutil.copy(source, to / f"{number}{source.suffix}")
    return to


def add_predict(
    section: Section,
    shape: shapes.Shape,
    chosen: Path,
    own: Path,
    theirs: Path | None,
    rounds: int,
) -> None:
    """Wall clock of the whole process, from the interpreter's start to the last answer."""
    answers = chosen.parent / "answers.csv"
    ours = (
        *("-m", "patchwords", "predict", own, chosen, "--csv", answers, "--overwrite"),
        *("--top-k", 1, "--precision", "auto"),
    )
    found: dict[str, list[float]] = {"ours": [], "plain": []}
    said = ""
    for _ in range(rounds):
        found["ours"].append(child.run(ours)[0])
        if theirs is not None:
            words = ("predict", theirs, chosen, "--size", shape.image_size)
            took, said = child.run(("-m", "benchmarks.plain_script", *words))
            found["plain"].append(took)
    what = f"predict {len(photos.paths_of(chosen)):,} photos, {shape.title}"
    peer = ("plain timm script", found["plain"]) if theirs is not None else None
    section.add(compare(what, "s", found["ours"], peer, goal=GOALS["predict"]))
    if said:
        wanted = json.loads(said.strip().splitlines()[-1])["answers"]
        with answers.open(newline="") as file:
            same = [wanted[row["path"]] == int(row["label"]) for row in csv.DictReader(file)]
        section.remark(f"both name the same class for {sum(same):,} of {len(same):,} photos")
