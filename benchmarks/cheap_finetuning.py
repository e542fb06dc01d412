"""Fine-tuning a part of the weights: accuracy, share that learns, seconds, memory.

    python -m benchmarks.cheap_finetuning DATA [--seeds 0 1 2] [--images 1000] [--epochs 5]

`patchwords finetune --train norms | lora:8 | last:2 | head | all` from the encoder in the box, with
AdamW. The photos are first made small, so that decoding takes no part in it. Rates are usual ones,
not tuned: with several --lrs the best on the validation images of the first seed is taken; the
held-out images choose nothing. Time is the processor's for the training with its validation, which
other programs lengthen little; memory is the peak of the process. No report is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from patchwords.data.decode import decode_image
from patchwords.data.open import open_data

PARTS = {"head": 3e-3, "norms": 3e-3, "lora:8": 1e-3, "last:2": 1e-3, "all": 3e-4}  # and rates
SIDE = 48  # pixels of the short side of the small copies
SAME = ("--weights", "patchwords:cifar10-small", "--optimizer", "adamw", "--batch-size", 64)
SAME += ("--schedule", "cosine", "--weight-decay", 0.05, "--workers", 0, "--device", "cpu")
SAME += ("--warmup-steps", 20, "--precision", "auto", "--frozen", "compute")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lrs", type=float, nargs="+", help="rates to choose from")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--images", type=int, default=1000, help="training images")
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = write_small_copies(args.data, Path(folder) / "photos")
        rows = {part: measure_part(args, part, data, Path(folder)) for part in args.parts}
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
    lrs = args.lrs or [PARTS[part]]
    tried = {lr: train(args, part, lr, first, data, folder) for lr in lrs}
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
    words += ("--seed", seed, "--split-seed", seed, "--train-images", args.images, "--output", run)
    command = [sys.executable, "-m", "benchmarks.cheap_finetuning", *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [row["accuracy"] for row in lines if row["kind"] == "evaluation"][-1]
    memory = [row["memory"] for row in lines if row["kind"] == "train"][-1]
    return {
        "validation": validation,
        **result,
        "mebibytes": memory / 2**20,
    }


def train_in_child(words: list[str]) -> None:
    """Train as the command does, evaluate on the held-out images, and print the numbers."""
    from patchwords.cli.format import make_console
    from patchwords.cli.train.finetune import parse_finetune
    from patchwords.evaluation.held_out import evaluate_finished_run
    from patchwords.training.engine.lora import merge_lora
    from patchwords.training.engine.optimizer import describe_trained_share
    from patchwords.training.logs.display import Display
    from patchwords.training.run import prepare_training_run, train_to_end

    display = Display(make_console(stderr=True))
    run = prepare_training_run(parse_finetune(words), display)
    share = describe_trained_share(run.state.model)
    started = time.process_time()
    train_to_end(run, display)
    seconds = time.process_time() - started
    merge_lora(run.state.model)
    accuracy = evaluate_finished_run(run)[2]["accuracy"]["value"]
    found = {"accuracy": accuracy, "seconds": seconds, "learning": share}
    print(json.dumps(found))


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    """Print a row per part; seconds in relation to `all`."""
    whole = float(np.mean(rows["all"]["seconds"])) if "all" in rows else 1.0
    print("\n| --train | weights that learn | rate | accuracy | deviation | time | memory, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for part, row in rows.items():
        accuracy = np.array(row["accuracy"])
        spread = accuracy.std(ddof=1) if len(accuracy) > 1 else 0.0
        print(
            f"| {part} | {row['learning'][0].split()[0]} | {row['lr']:g} | {accuracy.mean():.1%} | {spread:.1%} | "
            f"{np.mean(row['seconds']) / whole:.2f} | {np.mean(row['mebibytes']):.0f} |"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["finetune"]:
        train_in_child(sys.argv[2:])
    else:
        main()
