"""What is read off accuracies against compute: what a family saves, and where it is ahead.

A family is its frontier: of its trainings those that no cheaper one of it beats, joined by straight
lines over the logarithm of the compute. Table 6 is read by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from patchwords.model.table6 import EXAFLOP, TABLE6, TABLE6_DATA_SETS, Table6Row
from patchwords.studies.study import TrialMetrics, collect_accuracies

VIT, RESNET, HYBRID = FAMILIES = ("ViT", "ResNet", "hybrid")
TRAINING_FLOPS = "training flops"  # of a cell's numbers: those of its encoder, where it has one

VIT_SAVING = "ResNet's compute over ViT's, equal accuracy"
HYBRID_SAVING = "ViT's compute over hybrid's, equal accuracy"
HYBRID_LEAD_LEAST_COMPUTE = "hybrid less ViT, least compute"
HYBRID_LEAD_MOST_COMPUTE = "hybrid less ViT, most compute"
VIT_LAST_GAIN = "ViT, most compute less the next"
FIVE_DATA_SETS = TABLE6_DATA_SETS[1:]  # of which Figure 5 has the average; the others are ImageNet

ComputePoint = tuple[float, float]  # (FLOPs, accuracy)


def parse_family(name: str) -> str:
    """Of a cell or a model.

    >>> parse_family("R50+ViT-B/32, 7 epochs"), parse_family("BiT-R50x1"), parse_family("small ViT, 9")
    ('hybrid', 'ResNet', 'ViT')
    """
    if "+" in name or HYBRID in name:
        return HYBRID
    return VIT if VIT in name else RESNET


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Every accuracy, and what they come to; a training that diverged is no point of its family."""
    points: dict[str, list[ComputePoint]] = {family: [] for family in FAMILIES}
    for name in labels.values():
        flops, accuracy = found[name].get(TRAINING_FLOPS), found[name].get("accuracy")
        if flops is not None and accuracy is not None:
            points[parse_family(name)].append((flops, accuracy))
    return {**collect_accuracies(labels, found), **compute_family_values(points)}


def compute_family_values(points: Mapping[str, Sequence[ComputePoint]]) -> dict[str, float | None]:
    first, last = compute_end_gaps(points[HYBRID], points[VIT])
    return {
        VIT_SAVING: compute_saving(points[VIT], points[RESNET]),
        HYBRID_SAVING: compute_saving(points[HYBRID], points[VIT]),
        HYBRID_LEAD_LEAST_COMPUTE: first,
        HYBRID_LEAD_MOST_COMPUTE: last,
        VIT_LAST_GAIN: compute_last_gain(points[VIT]),
    }


def compute_frontier(points: Sequence[ComputePoint]) -> tuple[np.ndarray, np.ndarray]:
    """-> (log2 of the FLOPs, accuracies), both rising."""
    best: list[ComputePoint] = []
    for flops, accuracy in sorted(points):
        if not best or accuracy > best[-1][1]:
            best.append((flops, accuracy))
    flops_, accuracies = np.array(best).reshape(-1, 2).T
    return np.log2(flops_), accuracies


def compute_saving(points: Sequence[ComputePoint], others: Sequence[ComputePoint]) -> float | None:
    """By how many doublings the others need more compute for the same accuracy.

    The mean over all accuracies that both reach; None where there are none.
    """
    if not points or not others:
        return None
    (ours, reached), (theirs, also) = compute_frontier(points), compute_frontier(others)
    low, high = max(reached[0], also[0]), min(reached[-1], also[-1])
    if not low < high:
        return None
    knots = np.unique([low, high, *(a for a in (*reached, *also) if low < a < high)])
    gaps = np.interp(knots, also, theirs) - np.interp(knots, reached, ours)
    return float(np.trapezoid(gaps, knots) / (high - low))  # exact: straight between knots


def compute_end_gaps(
    points: Sequence[ComputePoint], others: Sequence[ComputePoint]
) -> tuple[float | None, float | None]:
    """How far a family is above another at the least and at the most compute that both have."""
    if not points or not others:
        return None, None
    ours, theirs = compute_frontier(points), compute_frontier(others)
    costs = [np.log2([flops for flops, _ in family]) for family in (points, others)]
    ends = max(cost.min() for cost in costs), min(cost.max() for cost in costs)
    if not ends[0] < ends[1]:
        return None, None
    first, last = (float(np.interp(end, *ours) - np.interp(end, *theirs)) for end in ends)
    return first, last


def compute_last_gain(points: Sequence[ComputePoint]) -> float | None:
    """How far the dearest training is above the best of the others."""
    if len(points) < 2:
        return None
    *others, (_, accuracy) = sorted(points)
    return accuracy - max(one for _, one in others)


def build_table6_point(row: Table6Row) -> ComputePoint:
    """A training of Table 6: its FLOPs as printed, unless they cannot be right, and the average of
    its accuracies on five data sets."""
    exaflops = row.counted() if row.doubt else row.exaflops
    return EXAFLOP * exaflops, sum(row.accuracies[1:]) / len(FIVE_DATA_SETS) / 100


def collect_table6_points() -> dict[str, list[ComputePoint]]:
    """Family -> its trainings in Table 6."""
    return {
        family: [build_table6_point(row) for row in TABLE6 if parse_family(row.model) == family]
        for family in FAMILIES
    }
