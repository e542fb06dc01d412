"""What is read off accuracies against compute: what a family saves, and where it is ahead.

A family is its frontier: of its trainings those that no cheaper one of it beats, joined by straight
lines over the logarithm of the compute. Table 6 is read by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from patchwords.model.table6 import DATA_SETS, EXA, TABLE6, Row
from patchwords.studies.study import Numbers, accuracies

VIT, RESNET, HYBRID = FAMILIES = ("ViT", "ResNet", "hybrid")
COMPUTE = "training flops"  # of a cell's numbers: those of its encoder, where it has one

SAVES = "ResNet's compute over ViT's, equal accuracy"
HYBRID_SAVES = "ViT's compute over hybrid's, equal accuracy"
HYBRID_FIRST = "hybrid less ViT, least compute"
HYBRID_LAST = "hybrid less ViT, most compute"
RISES = "ViT, most compute less the next"
FIVE = DATA_SETS[1:]  # of which Figure 5 has the average; the others are ImageNet

Point = tuple[float, float]  # (FLOPs, accuracy)


def family_of(name: str) -> str:
    """Of a cell or a model.

    >>> family_of("R50+ViT-B/32, 7 epochs"), family_of("BiT-R50x1"), family_of("small ViT, 9")
    ('hybrid', 'ResNet', 'ViT')
    """
    if "+" in name or HYBRID in name:
        return HYBRID
    return VIT if VIT in name else RESNET


def read(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    """Every accuracy, and what they come to; a training that diverged is no point of its family."""
    points: dict[str, list[Point]] = {family: [] for family in FAMILIES}
    for name in labels.values():
        flops, accuracy = found[name].get(COMPUTE), found[name].get("accuracy")
        if flops is not None and accuracy is not None:
            points[family_of(name)].append((flops, accuracy))
    return {**accuracies(labels, found), **sums(points)}


def sums(points: Mapping[str, Sequence[Point]]) -> dict[str, float | None]:
    first, last = gap_at_ends(points[HYBRID], points[VIT])
    return {
        SAVES: saving(points[VIT], points[RESNET]),
        HYBRID_SAVES: saving(points[HYBRID], points[VIT]),
        HYBRID_FIRST: first,
        HYBRID_LAST: last,
        RISES: last_gain(points[VIT]),
    }


def frontier(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """-> (log2 of the FLOPs, accuracies), both rising."""
    best: list[Point] = []
    for flops, accuracy in sorted(points):
        if not best or accuracy > best[-1][1]:
            best.append((flops, accuracy))
    flops_, accuracies = np.array(best).reshape(-1, 2).T
    return np.log2(flops_), accuracies


def saving(points: Sequence[Point], others: Sequence[Point]) -> float | None:
    """By how many doublings the others need more compute for the same accuracy.

    The mean over all accuracies that both reach; None where there are none.
    """
    if not points or not others:
        return None
    (ours, reached), (theirs, also) = frontier(points), frontier(others)
    low, high = max(reached[0], also[0]), min(reached[-1], also[-1])
    if not low < high:
        return None
    knots = np.unique([low, high, *(a for a in (*reached, *also) if low < a < high)])
    gaps = np.interp(knots, also, theirs) - np.interp(knots, reached, ours)
    return float(np.trapezoid(gaps, knots) / (high - low))  # exact: straight between knots


def gap_at_ends(
    points: Sequence[Point], others: Sequence[Point]
) -> tuple[float | None, float | None]:
    """How far a family is above another at the least and at the most compute that both have."""
    if not points or not others:
        return None, None
    ours, theirs = frontier(points), frontier(others)
    costs = [np.log2([flops for flops, _ in family]) for family in (points, others)]
    ends = max(cost.min() for cost in costs), min(cost.max() for cost in costs)
    if not ends[0] < ends[1]:
        return None, None
    first, last = (float(np.interp(end, *ours) - np.interp(end, *theirs)) for end in ends)
    return first, last


def last_gain(points: Sequence[Point]) -> float | None:
    """How far the dearest training is above the best of the others."""
    if len(points) < 2:
        return None
    *others, (_, accuracy) = sorted(points)
    return accuracy - max(one for _, one in others)


def of_paper(row: Row) -> Point:
    """A training of Table 6: its FLOPs as printed, unless they cannot be right, and the average of
    its accuracies on five data sets."""
    exaflops = row.counted() if row.doubt else row.exaflops
    return EXA * exaflops, sum(row.accuracies[1:]) / len(FIVE) / 100


def paper_points() -> dict[str, list[Point]]:
    """Family -> its trainings in Table 6."""
    return {
        family: [of_paper(row) for row in TABLE6 if family_of(row.model) == family]
        for family in FAMILIES
    }
