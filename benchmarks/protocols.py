"""A small ViT and a small ResNet (BiT) of equal training compute, by every protocol, on CIFAR-10.

    python benchmarks/protocols.py [--folder runs/pretraining] [--seeds 0 1 2] [--images 1000]

The ViTs are those that benchmarks/pretraining.py has trained with labels, on 45,000 images; run
that first. For each seed BiT-R26x1 (67 times the parameters, 3.2 times the MACs of an image)
is trained here on the same images, by the same settings, for so many fewer images that both have
cost the same multiply-additions. Both are then frozen and asked: few-shot, linear probe and k-NN,
learned from the 5,000 images set apart and judged by the 10,000 test images; and the accuracy of
their own classifiers on disturbed test images, drawn as one figure for each family. What is done is
not done again.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from pretraining import PASSES, VIT, patchwords, place

import patchwords as pw
from patchwords.evaluation.robustness.measure import choose_perturbations
from patchwords.evaluation.statistics import compute_seed_statistics
from patchwords.models.cost import count_macs
from patchwords.report.figures.comparison import draw_robustness

RESNET = "BiT-R26x1"
SHOTS = (5, 25)
KINDS = (
    *("occlusion-random", "permutation", "texture-smoothing", "texture-shuffling"),
    *("noise-gaussian", "blur-defocus", "digital-contrast", "attack-fgsm", "attack-pgd"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=1000, help="disturbed images of test")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    data = asked.folder / "data" / "downstream"
    table: dict[str, dict[str, list[float]]] = {}
    points: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for seed in asked.seeds:
        runs = {
            "ViT": place(asked.folder, "supervised", seed),
            RESNET: train_resnet(asked.folder, seed, asked.precision),
        }
        for name, run in runs.items():
            row = table.setdefault(name, defaultdict(list))
            for protocol, value in probes(run, data).items():
                row[protocol].append(value)
        for row in disturb(asked.folder / "robustness" / str(seed), runs, data, asked.images):
            name = next(name for name, run in runs.items() if str(run) == row["model"])
            points[name, row["disturbance"], float(row["level"])].append(float(row["accuracy"]))
    show(table)
    draw(points, asked.folder / "robustness")


def passes() -> float:
    """Of the ResNet over its training images, for the compute of the ViT's."""
    vit = pw.create_model("ViT-Ti/4", num_classes=10, **VIT)
    resnet = pw.create_model(RESNET, num_classes=10, image_size=32)
    return PASSES * count_macs(vit.config) / count_macs(resnet.config)


def train_resnet(folder: Path, seed: int, precision: str) -> Path:
    run = place(folder, RESNET, seed)
    if not (run / "report.html").exists():
        going_on = "--resume" if (run / "checkpoints").is_dir() else "--overwrite"
        patchwords(
            *("pretrain", folder / "data" / "pretrain", "--exclude", folder / "data/shared.csv"),
            *("--model", RESNET, "--image-size", 32, "--epochs", f"{passes():.3f}"),
            *("--batch-size", 128, "--lr", 0.001, "--warmup-steps", 100, "--optimizer", "adamw"),
            *("--schedule", "cosine", "--weight-decay", 0.05, "--crop-area", 0.4, 1),
            *("--validation", 0.02, "--seed", seed, "--precision", precision),
            *("--output", run, going_on),
        )
    return run


def probes(run: Path, data: Path) -> dict[str, float]:
    """Protocol -> accuracy."""
    found = json.loads(patchwords("fewshot", run, data, "--shots", *SHOTS, "--json"))
    few = {f"{row['shots']}-shot": row["mean"] for row in found["table"]}
    rest = {
        name: json.loads(patchwords(verb, run, data, "--json"))["results"]["accuracy"]["value"]
        for name, verb in (("linear probe", "probe"), ("k-NN", "knn"))
    }
    whole = json.loads(patchwords("evaluate", run, data, "--split", "test", "--json"))
    return {**few, **rest, "its own classifier": whole["accuracy"]["value"]}


def disturb(folder: Path, runs: dict[str, Path], data: Path, images: int) -> list[dict[str, Any]]:
    """The rows of `patchwords robustness`."""
    if not (folder / "results.csv").exists():
        patchwords(
            *("robustness", *runs.values(), data, "--only", *KINDS, "--images", images),
            *("--output", folder),
        )
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def show(table: dict[str, dict[str, list[float]]]) -> None:
    names = list(next(iter(table.values())))
    print("| model | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for model, row in table.items():
        cells = []
        for name in names:
            found = compute_seed_statistics([100 * value for value in row[name]])
            extra = "" if found.std is None else f" ± {found.std:.1f}"
            cells.append(f"{found.mean:.1f}{extra}")
        print(f"| {model} | {' | '.join(cells)} |")


def draw(points: dict[tuple[str, str, float], list[float]], folder: Path) -> None:
    """Means over all seeds, of training and of drawing; bands from the lowest to the highest."""
    rows = [
        {
            "model": model,
            "disturbance": disturbance,
            "level": level,
            "prepared_on": None,
            "mean": sum(values) / len(values),
            "lowest": min(values),
            "highest": max(values),
        }
        for (model, disturbance, level), values in points.items()
    ]
    for name, content in draw_robustness(choose_perturbations(KINDS), rows).items():
        (folder / name).write_bytes(content)
        print(folder / name)


if __name__ == "__main__":
    main()
