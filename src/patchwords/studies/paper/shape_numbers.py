"""What is read off the shapes of one seed: the gain along each dimension, and what predicts it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from patchwords.studies.study import Numbers, accuracies

BASE = "the middle"
DEPTH, WIDTH, MLP, PATCH, ALL = LINES = ("depth", "width", "MLP", "patch", "all")
BY_COMPUTE = "correlation with compute less that with parameters"


def gain_of(line: str) -> str:
    """The label of what a dimension brings."""
    return f"{line}, per doubling"


def line_of(name: str) -> str:
    """The dimension that a cell has more of.

    >>> line_of("depth 16"), line_of("all, twice"), line_of("the middle")
    ('depth', 'all', 'the middle')
    """
    return next((line for line in LINES if name.startswith(line)), BASE)


def read(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    return {
        **accuracies(labels, found),
        **{gain_of(line): gain(line, found) for line in LINES},
        BY_COMPUTE: advantage(found),
    }


def gain(line: str, found: Mapping[str, Numbers]) -> float | None:
    """Points per doubling of the compute, from the middle to the dearest cell of a dimension."""
    of_line = [one for name, one in found.items() if line_of(name) == line]
    alive = [one for one in of_line if one.get("flops") is not None]
    base = found[BASE].get("accuracy")
    if base is None or len(alive) < len(of_line):
        return None
    dearest = max(alive, key=lambda one: one["flops"] or 0.0)
    accuracy = dearest.get("accuracy")
    return None if accuracy is None else (accuracy - base) / doublings(dearest, found[BASE])


def doublings(one: Numbers, base: Numbers) -> float:
    cost, usual = one["flops"], base["flops"]
    assert cost
    assert usual
    return math.log2(cost / usual)


def advantage(found: Mapping[str, Numbers]) -> float | None:
    """Correlation of the accuracy with log compute, less that with the log of the parameters."""
    rows = [
        [one.get(name) for name in ("accuracy", "flops", "parameters")] for one in found.values()
    ]
    whole = np.array([row for row in rows if None not in row], dtype=np.float64)
    if len(whole) < len(rows):
        return None
    accuracy, flops, parameters = whole.T
    by_compute, by_size = (
        float(np.corrcoef(accuracy, np.log2(x))[0, 1]) for x in (flops, parameters)
    )
    return by_compute - by_size
