"""Precision of `patchwords doctor --labels`: labels flipped with known seeds, and found again.

    python benchmarks/label_errors.py DATA [--source MODEL] [--seeds 3 4 5] [--flip 0.05]

A share of the labels is replaced by another class, drawn evenly. Features are computed once; the
ranking is that of the command. Precision at the top p % is the share of flipped labels among the
first p % of the images. Labels that were wrong before count as right ones here. Seeds 0 to 2 chose
the ranking.
"""

from __future__ import annotations

import argparse

import numpy as np

from patchwords.data.dataset import concatenate_datasets
from patchwords.data.open import open_data
from patchwords.device import choose_device
from patchwords.evaluation.predictions import load_model_on_device
from patchwords.evaluation.probes.cache import build_feature_extractor, open_feature_cache
from patchwords.evaluation.probes.label_errors import LabelScores, score_labels

TOPS = (0.01, 0.05, 0.10)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--source", default="patchwords:cifar10-small")
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--flip", type=float, default=0.05)
    parser.add_argument("--split", help="of the data; default: all")
    args = parser.parse_args()
    data = open_data(args.data)
    parts = [data.splits[args.split]] if args.split else list(data.splits.values())
    loaded = load_model_on_device(args.source, choose_device("cpu", "fp32"))
    extract = build_feature_extractor(loaded, open_feature_cache(None, 16))
    features = extract(concatenate_datasets(parts))
    classes = len(data.classes)
    rows = []
    for seed in args.seeds:
        labels, flipped = flip_labels(features.labels, classes, args.flip, seed)
        scores = score_labels(features.values, labels, classes, seed=seed)
        rows.append([*measure_precision(scores, flipped), scores.accuracy])
        print_row(f"seed {seed}", rows[-1])
    print_row("mean", np.mean(rows, 0))
    print_row("deviation", np.std(rows, 0, ddof=1))


def flip_labels(
    labels: np.ndarray, classes: int, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Replace a share of the labels [n] by another class; -> labels, bool [n] which."""
    random = np.random.default_rng([seed, 5])
    flipped = np.zeros(len(labels), dtype=bool)
    flipped[random.choice(len(labels), round(share * len(labels)), replace=False)] = True
    others = (labels + random.integers(1, classes, size=len(labels))) % classes
    return np.where(flipped, others, labels), flipped


def measure_precision(scores: LabelScores, flipped: np.ndarray) -> list[float]:
    """Precision at each of TOPS, of those called suspicious, and the share of all flips in those."""
    order = np.argsort(scores.score, kind="stable")
    tops = [float(flipped[order[: round(top * len(order))]].mean()) for top in TOPS]
    suspicious = scores.suspicious
    return [*tops, float(flipped[suspicious].mean()), float(suspicious[flipped].mean())]


def print_row(name: str, row: list[float] | np.ndarray) -> None:
    words = (*(f"top {top:.0%}" for top in TOPS), "suspicious", "recall of these", "accuracy")
    cells = "  ".join(f"{word} {value:6.1%}" for word, value in zip(words, row, strict=True))
    print(f"{name:10}{cells}", flush=True)


if __name__ == "__main__":
    main()
