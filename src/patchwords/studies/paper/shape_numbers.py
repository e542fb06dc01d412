"""What is read off the shapes of one seed: the gain along each dimension, and what predicts it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from patchwords.studies.study import TrialMetrics, collect_accuracies

BASE_TRIAL = "the middle"
DEPTH, WIDTH, MLP, PATCH_SIZE, ALL_DIMENSIONS = DIMENSIONS = (
    "depth",
    "width",
    "MLP",
    "patch",
    "all",
)
COMPUTE_CORRELATION_LEAD = "correlation with compute less that with parameters"


def make_gain_label(line: str) -> str:
    """The label of what a dimension brings."""
    return f"{line}, per doubling"


def parse_dimension(name: str) -> str:
    """The dimension that a cell has more of.

    >>> parse_dimension("depth 16"), parse_dimension("all, twice"), parse_dimension("the middle")
    ('depth', 'all', 'the middle')
    """
    return next((line for line in DIMENSIONS if name.startswith(line)), BASE_TRIAL)


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    return {
        **collect_accuracies(labels, found),
        **{make_gain_label(line): compute_gain(line, found) for line in DIMENSIONS},
        COMPUTE_CORRELATION_LEAD: compute_correlation_lead(found),
    }


def compute_gain(line: str, found: Mapping[str, TrialMetrics]) -> float | None:
    """Points per doubling of the compute, from the middle to the dearest cell of a dimension."""
    of_line = [one for name, one in found.items() if parse_dimension(name) == line]
    alive = [one for one in of_line if one.get("flops") is not None]
    base = found[BASE_TRIAL].get("accuracy")
    if base is None or len(alive) < len(of_line):
        return None
    dearest = max(alive, key=lambda one: one["flops"] or 0.0)
    accuracy = dearest.get("accuracy")
    return (
        None
        if accuracy is None
        else (accuracy - base) / count_compute_doublings(dearest, found[BASE_TRIAL])
    )


def count_compute_doublings(one: TrialMetrics, base: TrialMetrics) -> float:
    cost, usual = one["flops"], base["flops"]
    assert cost
    assert usual
    return math.log2(cost / usual)


def compute_correlation_lead(found: Mapping[str, TrialMetrics]) -> float | None:
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
