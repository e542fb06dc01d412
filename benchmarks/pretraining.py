"""What pre-training brings a small ViT on CIFAR-10: supervised, masked patches, none.

    python benchmarks/pretraining.py CIFAR10 [--folder runs/pretraining] [--seeds 0 1 2]

CIFAR10 is a folder with the data set's two parquet files. 5,000 of its 50,000 training images (500
of each class) are set apart: a ViT of 208 thousand parameters is pre-trained on the other 45,000
without those that look like a test image, three passes with labels or without, then fine-tuned on
the 5,000, ten passes. Beside it: the same fine-tuning from random weights, and training on the
5,000 from random weights for as many images as pre-training and fine-tuning have seen together. All
take the same optimizer, learning rate and augmentation, none of them tuned. Accuracy is on the
10,000 test images, which nothing else reads. What is done is not done again: the command goes on
where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import patchwords as pw
from patchwords.data.preprocess import Preprocess
from patchwords.evaluation.statistics import compute_seed_statistics

SET_APART = 500  # images of each class
PASSES, TUNING_PASSES = 3, 10
VIT = {"image_size": 32, "width": 64, "depth": 4, "heads": 2, "mlp_width": 256}
SHOTS = (5, 25)
# beginning -> the flags of its pre-training; none: random weights
PRETRAINED = {
    "supervised": ("--objective", "supervised"),
    "masked patches": ("--objective", "masked"),
}
TUNED = {  # what is compared -> (beginning, passes over the 5,000)
    "supervised": ("supervised", TUNING_PASSES),
    "masked patches": ("masked patches", TUNING_PASSES),
    "from scratch": (None, TUNING_PASSES),
    "from scratch, all of the budget": (None, TUNING_PASSES + PASSES * 9),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    divide(asked.cifar10, asked.folder)
    accuracy: dict[str, list[float]] = {name: [] for name in TUNED}
    shots: dict[str, dict[int, list[float]]] = {
        name: {count: [] for count in SHOTS} for name in (*PRETRAINED, "random weights")
    }
    for seed in asked.seeds:
        for name, flags in PRETRAINED.items():
            pretrain(asked.folder, name, seed, flags, asked.precision)
        untrained(asked.folder, seed)
        for name, (start, passes) in TUNED.items():
            found = finetune(asked.folder, name, seed, start, passes, asked.precision)
            accuracy[name].append(found)
        for name, table in shots.items():
            for count, value in fewshot(asked.folder, name, seed).items():
                table[count].append(value)
    show(accuracy, shots)


def divide(cifar10: Path, folder: Path) -> None:
    """Write the images to pre-train on, those to fine-tune on, and the list of those left out."""
    pre, down = folder / "data" / "pretrain", folder / "data" / "downstream"
    if (folder / "data" / "shared.csv").exists():
        return
    for place in (pre, down):
        place.mkdir(parents=True, exist_ok=True)
    [train], [test] = (sorted(cifar10.glob(f"{name}-*.parquet")) for name in ("train", "test"))
    images = pq.read_table(train)
    labels = images["label"].to_numpy()
    order = np.random.default_rng(0).permutation(len(labels))
    chosen = np.concatenate([order[labels[order] == label][:SET_APART] for label in range(10)])
    pq.write_table(images.take(np.sort(chosen)), down / "train.parquet")
    pq.write_table(images.take(np.setdiff1d(order, chosen)), pre / "train.parquet")
    pq.write_table(pq.read_table(test), down / "test.parquet")
    against = ("--against", down / "test.parquet", down / "train.parquet")
    patchwords("dedup", pre / "train.parquet", *against, "--output", folder / "data" / "shared.csv")


def pretrain(folder: Path, name: str, seed: int, flags: tuple[str, ...], precision: str) -> None:
    shared = ("--exclude", folder / "data" / "shared.csv", "--validation", 0.02, *shape())
    train(
        ("pretrain", folder / "data" / "pretrain", *flags, *shared, *settings(seed, precision)),
        ("--epochs", PASSES, "--batch-size", 128, "--lr", 0.001, "--warmup-steps", 100),
        place(folder, name, seed),
    )


def untrained(folder: Path, seed: int) -> None:
    """A model as it is before training."""
    model = pw.create_model("ViT-Ti/4", num_classes=10, seed=seed, **VIT)
    pixels = Preprocess(image_size=(32, 32), crop_fraction=1.0)
    pw.save_pretrained(model, place(folder, "random weights", seed), preprocess=pixels)


def finetune(
    folder: Path, name: str, seed: int, start: str | None, passes: int, precision: str
) -> float:
    """Accuracy on the test images."""
    run = folder / "tuned" / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
    begin = shape() if start is None else ("--weights", place(folder, start, seed))
    train(
        ("finetune", folder / "data" / "downstream", *begin, *settings(seed, precision)),
        ("--epochs", passes, "--batch-size", 64, "--lr", 0.001, "--warmup-steps", 80),
        run,
    )
    return float(json.loads((run / "evaluation.json").read_text())["accuracy"]["value"])


def shape() -> tuple[object, ...]:
    """The flags of a new model."""
    flags = (word for key, n in VIT.items() for word in (f"--{key.replace('_', '-')}", n))
    return ("--model", "ViT-Ti/4", *flags)


def settings(seed: int, precision: str) -> tuple[object, ...]:
    return (
        *("--optimizer", "adamw", "--schedule", "cosine"),
        *("--weight-decay", 0.05, "--dropout", 0, "--crop-area", 0.4, 1, "--seed", seed),
        *("--precision", precision),
    )


def train(what: tuple[object, ...], how: tuple[object, ...], run: Path) -> None:
    if (run / "report.html").exists():
        return
    going_on = ("--resume",) if (run / "checkpoints").is_dir() else ("--overwrite",)
    patchwords(*what, *how, "--output", run, *going_on)


def place(folder: Path, name: str, seed: int) -> Path:
    return folder / "pretrained" / f"{name.replace(' ', '-')}-{seed}"


def fewshot(folder: Path, name: str, seed: int) -> dict[int, float]:
    """Shots -> accuracy on the test images, the mean of three draws from the 5,000."""
    found = patchwords(
        *("fewshot", place(folder, name, seed), folder / "data" / "downstream"),
        *("--shots", *SHOTS, "--seeds", 3, "--cache", "none", "--json"),
    )
    return {row["shots"]: row["mean"] for row in json.loads(found)["table"]}


def patchwords(*words: object) -> str:
    command = [sys.executable, "-m", "patchwords", *map(str, words)]
    print(" ".join(command[2:]), file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def show(accuracy: dict[str, list[float]], shots: dict[str, dict[int, list[float]]]) -> None:
    def cell(values: list[float] | None) -> str:
        if not values:
            return "-"
        found = compute_seed_statistics([100 * value for value in values])
        return f"{found.mean:.1f}" if found.std is None else f"{found.mean:.1f} ± {found.std:.1f}"

    print("| start | fine-tuned | " + " | ".join(f"{count}-shot" for count in SHOTS) + " |")
    print("|---|---|" + "---|" * len(SHOTS))
    for name in {**accuracy, **shots}:
        few = (cell(shots.get(name, {}).get(count)) for count in SHOTS)
        print(f"| {name} | {cell(accuracy.get(name))} | {' | '.join(few)} |")


if __name__ == "__main__":
    main()
