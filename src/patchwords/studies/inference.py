"""Intervals and p-values of differences between trials, over seeds and over test images.

The seeds of a study are blocks: value = cell + seed + rest. The variance of the rest is pooled over
all cells, with (cells - 1)(seeds - 1) degrees of freedom, unless the cells differ in it (Bartlett
1937, p below 0.05); then, and for numbers that are no accuracies of trainings of their own,
differences are paired by seed. Of two cells alone both are the same.

Seeds that share their test images say nothing of other images: the variance of drawing these is
added, and the degrees of freedom are Satterthwaite's. Without the answers to single images those of
two models count as independent, which is wider than the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

LEVEL = 0.05
SeedValues = Mapping[str, Mapping[int, float | None]]  # label -> seed -> value; None: diverged


@dataclass(frozen=True)
class Evidence:
    """Values of all labels of a study, and what is known of their spread."""

    values: SeedValues
    trained: frozenset[str] = frozenset()  # labels that are accuracies of trainings of their own
    # label -> number of test images that all seeds share, or that its single seed has
    images: Mapping[str, int] = field(default_factory=dict)
    # label -> bool [seeds, images]: whether each answer is right
    answers: Mapping[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def pooled(self) -> tuple[float, int] | None:
        """Variance between seeds and its degrees of freedom, pooled over the trainings."""
        return pool_variance(self)


@dataclass(frozen=True)
class Estimate:
    """A difference with its standard error, degrees of freedom and 95 % interval."""

    mean: float
    std: float | None  # of the differences of single seeds
    low: float | None
    high: float | None
    n: int  # seeds
    error: float | None  # standard error of the mean
    freedom: float | None  # degrees of freedom; None: infinite, or without an interval
    image_error: float | None  # share of the error that comes from the choice of test images

    def tail(self, bound: float) -> float:
        """Compute the p of a true difference of at most `bound`."""
        if self.error is None:
            return 1.0
        return _upper_tail(self.mean - bound, self.error, self.freedom)


def estimate_difference(
    values: Sequence[float], more: Sequence[str], less: Sequence[str], evidence: Evidence
) -> Estimate:
    """Estimate a difference from its values over seeds, `more` minus `less`."""
    array, n = np.asarray(values, np.float64), len(values)
    mean = float(array.mean())
    std = float(array.std(ddof=1)) if n > 1 else None
    over_seeds = 0.0 if std is None else std**2 / n
    freedom: float | None = n - 1 if n > 1 else None
    pooled = evidence.pooled if {*more, *less} <= evidence.trained and less else None
    if pooled is not None and n > 1:
        over_seeds = pooled[0] * (1 / len(more) + 1 / len(less)) / n
        freedom = pooled[1]
    over_images = compute_image_variance(more, less, evidence, n)
    if n == 1 and over_images is None:
        return Estimate(mean, None, None, None, 1, None, None, None)
    error = math.sqrt(over_seeds + (over_images or 0.0))
    if freedom is not None and over_images and over_seeds:
        freedom *= ((over_seeds + over_images) / over_seeds) ** 2
    elif over_images:
        freedom = None
    half = _quantile(freedom) * error
    from_images = None if over_images is None else math.sqrt(over_images)
    return Estimate(mean, std, mean - half, mean + half, n, error, freedom, from_images)


def pool_variance(evidence: Evidence) -> tuple[float, int] | None:
    """Pool the variance over the cells that have all seeds: (variance, degrees of freedom).

    None with fewer than two cells or seeds, and where the cells differ in their variance.
    """
    rows = [list(evidence.values[label].values()) for label in sorted(evidence.trained)]
    if not rows or any(None in row or len(row) != len(rows[0]) for row in rows):
        return None
    table = np.asarray(rows, np.float64)  # [cells, seeds]
    cells, seeds = table.shape
    if cells < 2 or seeds < 2:
        return None
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    freedom = (cells - 1) * (seeds - 1)
    if cells > 2 and not _have_equal_variance(rest):
        return None
    return float((rest**2).sum() / freedom), freedom


def _have_equal_variance(rest: np.ndarray) -> bool:
    """Test by Bartlett's statistic whether rows have one variance."""
    from scipy.special import chdtrc

    cells, seeds = rest.shape
    variances = rest.var(1, ddof=1)
    if not variances.all():  # a cell that never changes is another kind of cell
        return False
    excess = cells * math.log(variances.mean()) - float(np.log(variances).sum())
    statistic = (seeds - 1) * excess / (1 + (cells + 1) / (3 * cells * (seeds - 1)))
    return bool(chdtrc(cells - 1, statistic) >= LEVEL)


def compute_image_variance(
    more: Sequence[str], less: Sequence[str], evidence: Evidence, seeds: int
) -> float | None:
    """Compute the variance that drawing the test images adds to a mean difference.

    None where it is not known, or already in the spread of seeds that have images of their own.
    """
    labels = (*more, *less)
    counts = {evidence.images.get(label, 0) for label in labels}
    if len(counts) != 1 or 0 in counts:
        return None
    if all(label in evidence.answers for label in labels):
        return _measure_image_variance(more, less, evidence)
    (count,) = counts
    return sum(_bound_image_variance(group, evidence) for group in (more, less)) / count


def _measure_image_variance(more: Sequence[str], less: Sequence[str], evidence: Evidence) -> float:
    """Measure the variance of images, without the part that is the chance of single seeds."""
    difference = np.mean([evidence.answers[label] for label in more], axis=0, dtype=np.float64)
    if less:
        difference = difference - np.mean([evidence.answers[label] for label in less], axis=0)
    seeds, images = difference.shape
    between = float(difference.mean(0).var(ddof=1))
    if seeds > 1:
        between -= float(difference.var(0, ddof=1).mean()) / seeds
    return max(0.0, between) / images


def _bound_image_variance(group: Sequence[str], evidence: Evidence) -> float:
    """Bound the variance of a group's mean answer to an image by its accuracy."""
    known = [value for label in group for value in evidence.values[label].values()]
    accuracies = [value for value in known if value is not None]
    if not accuracies:
        return 0.0
    accuracy = min(1.0, max(0.0, float(np.mean(accuracies))))
    return accuracy * (1 - accuracy)


def _upper_tail(difference: float, error: float, freedom: float | None) -> float:
    """Compute P(T > difference / error)."""
    from scipy.special import ndtr, stdtr

    if error == 0:
        return 0.5 if difference == 0 else float(difference < 0)
    ratio = -difference / error
    return float(ndtr(ratio) if freedom is None else stdtr(freedom, ratio))


def _quantile(freedom: float | None) -> float:
    from scipy.special import ndtri, stdtrit

    upper = 1 - LEVEL / 2
    return float(ndtri(upper) if freedom is None else stdtrit(freedom, upper))


# p-values of a claim: of the verdict "agrees" and of "disagrees".


def compute_direction_ps(estimate: Estimate) -> tuple[float, float]:
    """Compute the two-sided p of a difference above 0, and of one below."""
    above = estimate.tail(0.0)
    return min(1.0, 2 * above), min(1.0, 2 * (1 - above)) if estimate.error is not None else 1.0


def compute_equivalence_ps(estimate: Estimate, margin: float) -> tuple[float, float]:
    """Compute the p of a difference within the margin, by two one-sided tests, and of one outside.

    Schuirmann 1987: within the margin at 5 % means that the 90 % interval is within it.
    """
    if estimate.error is None:
        return 1.0, 1.0
    above_lower, above_upper = estimate.tail(-margin), estimate.tail(margin)
    within = max(above_lower, 1 - above_upper)
    outside = 2 * min(above_upper, 1 - above_lower)
    return within, min(1.0, outside)


def adjust_by_holm(ps: Sequence[float]) -> list[float]:
    """Adjust p-values for their number (Holm 1979): the chance of any wrong one is at most 5 %.

    >>> adjust_by_holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = highest
    return adjusted
