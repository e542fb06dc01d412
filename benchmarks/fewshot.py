"""Few-shot least squares over a path of penalties, against one scikit-learn fit for each.

    python benchmarks/fewshot.py [--classes 1000] [--shots 5] [--width 768] [--penalties 10]

Each contender fits the same random features in a process of its own, so that its peak memory is
its own, too; the processes take turns, and medians are printed. scikit-learn's
get float64 features that are white and have the constant already, outside their time; ours makes
them so itself. `Ridge` is given targets
in {-1, 1}^K, which are made outside its time; `RidgeClassifier` makes them, as `fit_ridge_classifiers` does. Memory
is the peak of the process above what it held with the features alone.
The weights are compared in the run, and must agree to 1e-8.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge, RidgeClassifier

from patchwords.device import peak_memory
from patchwords.evaluation.probes.fewshot import fit_ridge_classifiers, standardise_features

MIB = 2**20
SAMPLE = 997  # numbers of each weight matrix that are compared
APART = 1e-8  # that they may be
SETTINGS = ("classes", "shots", "width", "penalties")


def make(classes: int, shots: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [N, D] around a centre for each class, and labels [N]."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), shots)
    centres = random.standard_normal((classes, width), dtype=np.float32)
    x = random.standard_normal((len(labels), width), dtype=np.float32)
    x *= 2
    by_class = x.reshape(classes, shots, width)
    by_class += centres[:, None]  # in place: what this took would hide what the fits take
    return x, labels


def white(x: np.ndarray) -> np.ndarray:
    return standardise_features(x, x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64) + 1e-5)


Fits = Callable[[], Iterable[np.ndarray]]  # weights [D + 1, K] for each penalty, one by one


def of_patchwords(x: np.ndarray, labels: np.ndarray, l2s: list[float]) -> Fits:
    return lambda: (linear.weights for linear in fit_ridge_classifiers(x, labels, l2s))


def of_ridge(x: np.ndarray, labels: np.ndarray, l2s: list[float]) -> Fits:
    x = white(x)
    targets = np.where(labels[:, None] == np.unique(labels), 1.0, -1.0)
    return lambda: (Ridge(alpha=l2, fit_intercept=False).fit(x, targets).coef_.T for l2 in l2s)


def of_ridge_classifier(x: np.ndarray, labels: np.ndarray, l2s: list[float]) -> Fits:
    x = white(x)
    return lambda: (
        RidgeClassifier(alpha=l2, fit_intercept=False).fit(x, labels).coef_.T for l2 in l2s
    )


CONTENDERS = {
    "patchwords": of_patchwords,
    "Ridge": of_ridge,
    "RidgeClassifier": of_ridge_classifier,
}


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One run of one contender, in this process."""
    x, labels = make(args.classes, args.shots, args.width)
    l2s = np.logspace(0, 10, args.penalties, base=2).tolist()
    before = peak_memory(torch.device("cpu"))
    fits = CONTENDERS[name](x, labels, l2s)
    places = np.random.default_rng(1).integers(0, (args.width + 1) * args.classes, SAMPLE)
    seconds, sample = 0.0, []
    start = time.perf_counter()
    for weights in fits():
        seconds += time.perf_counter() - start
        sample.append(weights.reshape(-1)[places].tolist())
        start = time.perf_counter()
    memory = peak_memory(torch.device("cpu")) - before
    return {"seconds": seconds, "memory": memory, "sample": sample}


def race(settings: Sequence[str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """What `measure` finds for each contender in each round, all in processes of their own."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, runs in found.items():
            words = [sys.executable, __file__, *settings, "--only", name]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout))
    return found


def difference(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    """The most that two contenders' weights are apart."""
    return float(np.abs(np.array(runs[0]["sample"]) - np.array(others[0]["sample"])).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--penalties", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*CONTENDERS], help="in this process, printed as JSON")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only, args)))
        return
    settings = [f"--{key}={getattr(args, key)}" for key in SETTINGS]
    found = race(settings, args.rounds)
    ours = found["patchwords"]
    for name, runs in found.items():
        apart = difference(runs, ours)
        assert apart < APART, (name, apart)
        seconds = statistics.median(run["seconds"] for run in runs)
        ratio = seconds / statistics.median(run["seconds"] for run in ours)
        memory = statistics.median(run["memory"] for run in runs) / MIB
        print(
            f"{name:16} {seconds:7.3f} s {ratio:6.2f}x {memory:6.0f} MiB, weights apart by "
            f"{apart:.1e} at most"
        )


if __name__ == "__main__":
    main()
