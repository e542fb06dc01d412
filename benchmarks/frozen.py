"""Frozen layers computed once, against computed in every step: the time of an epoch.

    python benchmarks/frozen.py [--data FOLDER] [--epochs 4] [--json FILE]

`patchwords finetune --train head` of a ViT-Ti/16 at 224, from random weights, twice: `--frozen
cache` and `--frozen compute`, in processes of their own. Everything else is equal, and each image
is seen alike in every epoch. Without --data, 512 photos of 500 x 375 pixels are made up. The time
of the first epoch has the computing of the frozen layers in it; validation is in none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

PHOTOS, CLASSES, SIZE = 512, 4, (500, 375)
BATCH = 32
SAME = ("--random-crop", 1, "--resize", "squash", "--no-flip", "--dropout", 0)
ALONE = ("--test", 0.1, "--validation", 0.05, "--balance", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--train", default="head")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.epochs < 2:
        parser.error("--epochs: give 2 or more, as the first is unlike the others")
    with tempfile.TemporaryDirectory() as folder:
        data = asked.data or made_up(Path(folder) / "photos")
        rows = {
            frozen: measure(asked, data, frozen, Path(folder) / frozen)
            for frozen in ("compute", "cache")
        }
    show(asked, rows)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n")


def made_up(folder: Path) -> Path:
    """Photos of noise that was smoothed, about as large as real ones."""
    generator = np.random.default_rng(0)
    for number in range(PHOTOS):
        place = folder / f"class-{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        small = generator.integers(256, size=(47, 63, 3), dtype=np.uint8)
        photo = Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC)
        photo.save(place / f"{number}.jpg", quality=90)
    return folder


def measure(asked: argparse.Namespace, data: Path, frozen: str, run: Path) -> dict[str, float]:
    """Seconds of the first epoch and of each later one, in the mean."""
    words = (
        *("finetune", data, "--model", asked.model, "--image-size", asked.image_size),
        *("--train", asked.train, "--frozen", frozen, "--epochs", asked.epochs),
        *("--batch-size", BATCH, "--precision", asked.precision, "--log-every", 1),
        *("--eval-every", 10**9, "--save-every", 10**9, *SAME, *ALONE, "--output", run),
    )
    command = [sys.executable, "-m", "patchwords", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in lines if row["kind"] == "train"]
    first = next(row for row in steps if row["epoch"] >= 1)
    later = (steps[-1]["seconds"] - first["seconds"]) / (steps[-1]["epoch"] - first["epoch"])
    return {"first": first["seconds"] / first["epoch"], "later": later}


def show(asked: argparse.Namespace, rows: dict[str, dict[str, float]]) -> None:
    print(f"{asked.model} at {asked.image_size}, --train {asked.train}, {asked.epochs} epochs\n")
    print("| frozen layers | first epoch, s | later epochs, s |\n|---|---:|---:|")
    for name, row in rows.items():
        print(f"| {name} | {row['first']:.2f} | {row['later']:.3f} |")
    ratio = {key: rows["compute"][key] / rows["cache"][key] for key in ("first", "later")}
    print(f"| ratio | {ratio['first']:.2f} | {ratio['later']:.1f} |")


if __name__ == "__main__":
    main()
