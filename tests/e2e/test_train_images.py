"""--train-images from the command to the report: fewer to learn from, all else as it is."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from stage import TINY, call, done, weights


def splits(run: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    with (run / "splits.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["split"], set()).add(row["path"])
    return found


def test_fewer_images_of_the_same_split(photos: Path, tmp_path: Path) -> None:
    words = ["finetune", photos, *TINY, "--split-seed", 0]
    few, more = tmp_path / "few", tmp_path / "more"
    said = done(*words, "--train-images", 9, "--output", few)
    assert "learning from 9 of" in said
    done(*words, "--train-images", 15, "--seed", 1, "--output", more)
    assert len(splits(few)["train"]) == 9
    assert splits(few)["train"] < splits(more)["train"]
    assert splits(few)["test"] == splits(more)["test"]
    assert splits(few)["validation"] == splits(more)["validation"]
    counts = json.loads((few / "data.json").read_text())["splits"]
    assert counts["train"]["images"] == 9
    assert min(counts["train"]["per_class"]) >= 2  # of 3

    # the report knows its images, and an evaluation asks about the same ones as the run did
    assert "differs" not in done("report", few)
    judged = json.loads(done("evaluate", few, photos, "--json"))
    assert judged["images"] == len(splits(few)["test"])


def test_a_run_goes_on_with_as_many(photos: Path, tmp_path: Path) -> None:
    words = ["finetune", photos, *TINY, "--train-images", 9]
    done(*words, "--save-every", 1, "--output", tmp_path / "run")
    trained = weights(tmp_path / "run")
    for step in (tmp_path / "run/checkpoints").glob("step-*3"):
        for file in step.iterdir():
            file.unlink()
        step.rmdir()
    asked = ("--output", tmp_path / "run", "--resume")
    line = call("finetune", photos, *TINY, "--train-images", 10, *asked).error
    assert "--train-images" in line
    done("finetune", photos, *asked)
    assert weights(tmp_path / "run") == trained


def test_too_many_are_refused(photos: Path, tmp_path: Path) -> None:
    words = ["finetune", photos, *TINY, "--output", tmp_path / "run", "--train-images"]
    assert "to train on, after what is held out" in call(*words, 1000).error
    assert call(*words, 0).error == "--train-images 0 must be greater than 0"
    assert not (tmp_path / "run").exists()
