"""Mean and interval over seeds, against published and scipy's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from patchwords.errors import DataError
from patchwords.evaluation.statistics import SeedStatistics, compute_seed_statistics


def test_students_own_example() -> None:
    """Gosset 1908, "The probable error of a mean", Section IX: hours of sleep gained by ten men."""
    gained = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = compute_seed_statistics(gained)
    assert found.mean == pytest.approx(2.33)
    assert found.std == pytest.approx(1.90 * math.sqrt(10 / 9), abs=0.005)  # he divided by n
    # the 97.5 % quantile of t with 9 degrees of freedom, 2.262 in every table
    half = 2.262 * found.std / math.sqrt(10)
    assert (found.low, found.high) == pytest.approx((2.33 - half, 2.33 + half), abs=5e-4)


@pytest.mark.parametrize("n", [2, 3, 11])
def test_agrees_with_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(0.7, 0.02, n)
    found = compute_seed_statistics(list(values))
    low, high = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    # float64: a few operations on numbers of order 1
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert found.n == n


def test_covers_the_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        found = compute_seed_statistics(random.normal(size=3))
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 0 <= found.high
    assert 930 <= inside <= 970  # 950 expected, deviation 6.9


def test_one_seed_has_no_spread_and_equal_seeds_none_either() -> None:
    assert compute_seed_statistics([0.5]) == SeedStatistics(0.5, None, None, None, 1)
    assert compute_seed_statistics([0.5, 0.5]) == SeedStatistics(0.5, 0.0, 0.5, 0.5, 2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], r"a spread needs a list of values, found an array of shape \(0,\)"),
        ([[0.5]], r"found an array of shape \(1, 1\)"),
        ([0.5, math.nan], "value 1 of 2 is nan: a spread needs finite numbers"),
    ],
)
def test_what_has_no_spread_is_refused(values: list[float], says: str) -> None:
    with pytest.raises(DataError, match=says):
        compute_seed_statistics(values)
