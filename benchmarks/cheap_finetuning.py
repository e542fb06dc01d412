"""Fine-tuning a part of the weights: accuracy, share that learns, seconds, memory.

    python -m benchmarks.cheap_finetuning DATA [--seeds 0 1 2] [--epochs 5] [--json FILE]

`patchwords finetune --train norms | lora:8 | last:2 | head | all` from the encoder in the box, with
AdamW. The photos are first made small, so that decoding takes no part in it. The learning rate of
each part is the best of --lrs on the validation images of the first seed; the held-out images
choose nothing. Seconds are those of the training steps; memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from patchwords.data.decode import decode_image
from patchwords.data.open import open_data

PARTS = ("head", "norms", "lora:8", "last:2", "all")
SIDE = 48  # pixels of the short side of the small copies
SAME = ("--weights", "patchwords:cifar10-small", "--optimizer", "adamw", "--batch-size", 64)
SAME += ("--schedule", "cosine", "--weight-decay", 0.05, "--workers", 0, "--device", "cpu")
SAME += ("--warmup-steps", 20, "--precision", "fp32", "--frozen", "compute")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lrs", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = write_small_copies(args.data, Path(folder) / "photos")
        rows = {part: measure_part(args, part, data, Path(folder)) for part in PARTS}
    print_table(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def write_small_copies(source: str, folder: Path) -> Path:
    """Write a copy of each photo, its short side of 48 pixels, by class."""
    data = open_data(source)
    for part in data.splits.values():
        for index, key in enumerate(part.keys):
            image = decode_image(part.read(index))
            scale = SIDE / min(image.size)
            size = [max(SIDE, round(side * scale)) for side in image.size]
            place = folder / data.classes[part.labels[index]] / f"{Path(key).stem}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            image.resize((size[0], size[1]), Image.Resampling.BICUBIC, reducing_gap=3).save(place)
    return folder


def measure_part(args: argparse.Namespace, part: str, data: Path, folder: Path) -> dict[str, Any]:
    """Choose the learning rate on the first seed, then train with every seed."""
    first = args.seeds[0]
    tried = {lr: train(args, part, lr, first, data, folder) for lr in args.lrs}
    best = max(tried, key=lambda lr: tried[lr]["validation"])
    runs = [tried[best]]
    runs += [train(args, part, best, seed, data, folder) for seed in args.seeds[1:]]
    row = {"lr": best, "tried": {f"{lr:g}": run["validation"] for lr, run in tried.items()}}
    row |= {name: [run[name] for run in runs] for name in runs[0]}
    print(part, json.dumps(row), flush=True)
    return row


def train(
    args: argparse.Namespace, part: str, lr: float, seed: int, data: Path, folder: Path
) -> dict[str, Any]:
    """Train once, in a process of its own."""
    run = folder / f"{part.replace(':', '-')}-{lr:g}-{seed}"
    words = ("finetune", data, *SAME, "--train", part, "--lr", lr, "--epochs", args.epochs)
    words += ("--seed", seed, "--split-seed", seed, "--output", run, "--json")
    command = [sys.executable, "-m", "patchwords", *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [row["accuracy"] for row in lines if row["kind"] == "evaluation"][-1]
    memory = [row["memory"] for row in lines if row["kind"] == "train"][-1]
    share = re.search(r"([\d,]+) of [\d,]+ parameters", " ".join(done.stderr.split()))
    return {
        "validation": validation,
        "accuracy": result["accuracy"]["value"],
        "seconds": result["seconds"],
        "mebibytes": memory / 2**20,
        "learning": share.group(1) if share else "all",
    }


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    """Print a row per part; seconds in relation to `all`."""
    whole = float(np.mean(rows["all"]["seconds"])) if "all" in rows else 1.0
    print("\n| --train | weights that learn | rate | accuracy | deviation | time | memory, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for part, row in rows.items():
        accuracy = np.array(row["accuracy"])
        spread = accuracy.std(ddof=1) if len(accuracy) > 1 else 0.0
        print(
            f"| {part} | {row['learning'][0]} | {row['lr']:g} | {accuracy.mean():.1%} | {spread:.1%} | "
            f"{np.mean(row['seconds']) / whole:.2f} | {np.mean(row['mebibytes']):.0f} |"
        )


if __name__ == "__main__":
    main()
