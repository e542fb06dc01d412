"""Statistics of paired models (McNemar, Newcombe) and of several seeds (Student's t).

Only images that exactly one of two models has right tell them apart. McNemar 1947 tests how likely
such an uneven split would be for equally good models; Newcombe 1998 gives an interval of the
difference of accuracies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from patchwords.errors import DataError
from patchwords.evaluation.metrics import wilson_interval

SIGNIFICANCE_LEVEL = 0.05  # the usual level; p itself is always printed

ProportionInterval = tuple[float, float, float]  # (value, low, high) of the 95 % interval


@dataclass(frozen=True)
class PairedCounts:
    """Number of images that both models, one of them, or neither has right."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> PairedCounts:
        """Count from bool [n] of each model: whether it is right."""
        return cls(*(int((x & y).sum()) for x, y in ((a, b), (a, ~b), (~a, b), (~a, ~b))))

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def a(self) -> int:
        """Images that the first model has right."""
        return self.both + self.only_a

    @property
    def b(self) -> int:
        return self.both + self.only_b

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def mcnemar_test(pairs: PairedCounts) -> tuple[float, float]:
    """Compute the exact (binomial) two-sided p of equal accuracies, and the mid-p.

    The exact p is never too small, and mostly too large. The mid-p counts the observed outcome by
    half; Fagerland, Lydersen & Laake 2013 (BMC Medical Research Methodology 13:91) recommend it.
    """
    from scipy.stats import binom

    fewer, more = sorted((pairs.only_a, pairs.only_b))
    if more == 0:  # the models are right on the same images: no evidence
        return 1.0, 1.0
    distribution = binom(fewer + more, 0.5)
    exact = min(1.0, 2 * float(distribution.cdf(fewer)))
    as_seen = float(distribution.pmf(fewer)) * (1 if fewer == more else 2)  # either model ahead
    return exact, exact - as_seen / 2


def accuracy_difference(pairs: PairedCounts) -> tuple[float, float, float]:
    """Compute the accuracy of the second model minus the first, with its 95 % interval.

    Newcombe 1998 (Statistics in Medicine 17:2635), method 10: Wilson's intervals of the two
    accuracies, combined with the correlation of the answers. The interval stays within [-1, 1] and
    has a width even if the models agree everywhere.
    """
    n = pairs.n
    a, b = ((right / n, *wilson_interval(right, n)) for right in (pairs.a, pairs.b))
    return proportion_difference(a, b, newcombe_phi(pairs))


def proportion_difference(
    a: ProportionInterval, b: ProportionInterval, phi: float = 0.0
) -> tuple[float, float, float]:
    """Compute the second share minus the first, with its 95 % interval from Wilson's intervals.

    Without a correlation `phi` the shares are of different images: Newcombe 1998 (Statistics in
    Medicine 17:873), method 10.
    """
    (at_a, low_a, high_a), (at_b, low_b, high_b) = a, b

    def width(of_b: float, of_a: float) -> float:
        return math.sqrt(max(0.0, of_b**2 - 2 * phi * of_b * of_a + of_a**2))

    value = at_b - at_a
    low = value - width(at_b - low_b, high_a - at_a)
    return value, low, value + width(high_b - at_b, at_a - low_a)


def newcombe_phi(pairs: PairedCounts) -> float:
    """Compute Newcombe's phi of the 2 x 2 table, shrunk towards 0 if it is positive."""
    margins = pairs.a * (pairs.n - pairs.a) * pairs.b * (pairs.n - pairs.b)
    if margins == 0:  # a model is always or never right
        return 0.0
    product: float = pairs.both * pairs.neither - pairs.only_a * pairs.only_b
    if product > 0:
        product = max(0.0, product - pairs.n / 2)
    return product / math.sqrt(margins)


def format_paired_counts(pairs: PairedCounts, a: str = "A", b: str = "B") -> str:
    """Format the four counts, with the names of the models."""
    return (
        f"both right on {pairs.both:,}, only {a} on {pairs.only_a:,}, only {b} on "
        f"{pairs.only_b:,}, neither on {pairs.neither:,}"
    )


def format_mcnemar_result(pairs: PairedCounts, a: str = "A", b: str = "B") -> str:
    """Format which model is ahead, and whether by chance: McNemar's mid-p."""
    if pairs.only_a == pairs.only_b:
        return "neither is ahead"
    ahead = a if pairs.only_a > pairs.only_b else b
    exact, mid = mcnemar_test(pairs)
    chances = f"McNemar's exact p {exact:.2g}, mid-p {mid:.2g}"
    if mid < SIGNIFICANCE_LEVEL:
        return f"{ahead} is ahead, by more than chance gives equal models in 95 of 100: {chances}"
    return f"{ahead} is ahead, but equal models come as far apart by chance: {chances}"


# Several seeds: mean, standard deviation, and the interval of the mean.


@dataclass(frozen=True)
class SeedStatistics:
    """Mean, standard deviation and interval of values over seeds."""

    mean: float
    std: float | None  # of a single seed (n - 1 in the denominator), not of the mean
    low: float | None  # 95 % interval of the mean, by Student's t
    high: float | None
    n: int


def compute_seed_statistics(values: Sequence[float]) -> SeedStatistics:
    """Compute mean, standard deviation and 95 % t-interval of values over seeds.

    The interval assumes a normal distribution: with three seeds it is 4.3 standard errors to either
    side. It is not clipped at 0 or 1. Raises DataError for no values, and for one that is not
    finite: a seed diverged.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise DataError(f"a spread needs a list of values, found an array of shape {array.shape}")
    n, mean = len(array), float(array.mean())
    broken = np.flatnonzero(~np.isfinite(array))
    if len(broken):
        raise DataError(
            f"value {broken[0]} of {n} is {array[broken[0]]}: a spread needs finite numbers"
        )
    if n == 1:
        return SeedStatistics(mean, None, None, None, 1)
    from scipy.special import stdtrit  # the quantile of t

    std = float(array.std(ddof=1))
    half = float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n)
    return SeedStatistics(mean, std, mean - half, mean + half, n)
