"""What a few seeds say of any seed: mean, standard deviation, and the interval of the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from patchwords.errors import DataError


@dataclass(frozen=True)
class SeedStatistics:
    """Values over seeds, summed up; of a single value nothing but itself is known."""

    mean: float
    std: float | None  # of a single seed (n - 1 in the denominator), not of the mean
    low: float | None  # 95 % interval of the mean, by Student's t
    high: float | None
    n: int


def compute_seed_statistics(values: Sequence[float]) -> SeedStatistics:
    """Mean, standard deviation and 95 % t-interval of the values that seeds gave.

    The interval takes the values for draws from a normal distribution: with three seeds it is
    4.3 standard errors to either side, which is honest, if wide. It is not cut at 0 or at 1.
    Raises DataError for no values, and for one that is not finite: a seed diverged.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise DataError(f"a spread needs a list of values, found an array of shape {found.shape}")
    n, mean = len(found), float(found.mean())
    broken = np.flatnonzero(~np.isfinite(found))
    if len(broken):
        raise DataError(
            f"value {broken[0]} of {n} is {found[broken[0]]}: a spread needs finite numbers"
        )
    if n == 1:
        return SeedStatistics(mean, None, None, None, 1)
    from scipy.special import stdtrit  # the quantile of t

    std = float(found.std(ddof=1))
    half = float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n)
    return SeedStatistics(mean, std, mean - half, mean + half, n)
