"""McNemar's test and Newcombe's interval against published numbers and by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest

from patchwords.evaluation.metrics import wilson_interval
from patchwords.evaluation.statistics import (
    PairedCounts,
    accuracy_difference,
    format_mcnemar_result,
    format_paired_counts,
    mcnemar_test,
    proportion_difference,
)

# Complete response before and after consolidation therapy (Cavo et al. 2012), as worked out in
# Fagerland, Lydersen & Laake 2017, "Statistical Analysis of Contingency Tables", chapter 8.
CAVO = PairedCounts(both=59, only_a=6, only_b=16, neither=80)


def test_mcnemar_gives_the_published_numbers() -> None:
    exact, mid = mcnemar_test(CAVO)
    assert exact == pytest.approx(0.052479, abs=5e-7)  # printed to six decimals
    assert mid == pytest.approx(0.034690, abs=5e-7)


def test_newcombe_gives_the_published_interval() -> None:
    value, low, high = accuracy_difference(CAVO)  # theirs is the first less the second
    assert (value, low, high) == pytest.approx((0.0621, 0.0046, 0.1186), abs=5e-5)


def test_mcnemar_of_airways_by_hand() -> None:
    """Bentur et al. 2009, in Fagerland, Lydersen & Laake 2013: 1 against 7 discordant patients."""
    exact, mid = mcnemar_test(PairedCounts(1, 1, 7, 12))
    assert exact == pytest.approx(2 * (1 + 8) / 2**8)
    assert mid == pytest.approx(2 * (1 + 8 / 2) / 2**8)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (3, 11), (11, 3), (5, 5), (0, 13), (400, 331)])
def test_exact_p_is_scipys_and_mid_p_is_half_of_what_was_seen_below(a: int, b: int) -> None:
    exact, mid = mcnemar_test(PairedCounts(17, a, b, 19))
    assert exact == pytest.approx(binomtest(a, a + b).pvalue, rel=1e-9)
    seen = math.comb(a + b, a) / 2 ** (a + b) * (1 if a == b else 2)
    assert mid == pytest.approx(exact - seen / 2, rel=1e-9)


def test_models_right_on_the_same_images_are_equal() -> None:
    same = PairedCounts(31, 0, 0, 6)
    assert mcnemar_test(same) == (1.0, 1.0)
    value, low, high = accuracy_difference(same)
    assert value == 0
    assert low == pytest.approx(-high)
    assert 0 < high < 0.1


def test_the_interval_mirrors_stays_in_range_and_holds_the_difference() -> None:
    for cells in product((0, 1, 7, 29), repeat=4):
        if not any(cells):
            continue
        both, only_a, only_b, neither = cells
        value, low, high = accuracy_difference(PairedCounts(*cells))
        assert -1 <= low <= value <= high <= 1
        assert value == pytest.approx((only_b - only_a) / sum(cells))
        swapped = accuracy_difference(PairedCounts(both, only_b, only_a, neither))
        assert swapped == pytest.approx((-value, -high, -low), abs=1e-12)
        turned = accuracy_difference(PairedCounts(neither, only_b, only_a, both))  # errors for hits
        assert turned == pytest.approx((-value, -high, -low), abs=1e-12)


def test_uncorrelated_answers_have_the_interval_of_independent_ones() -> None:
    """Newcombe's phi is 0 where the product of the diagonal is not beyond that of the others."""
    pairs = PairedCounts(12, 12, 12, 12)
    (low_a, high_a), (low_b, high_b) = wilson_interval(24, 48), wilson_interval(24, 48)
    _, low, high = accuracy_difference(pairs)
    assert low == pytest.approx(-math.hypot(0.5 - low_b, high_a - 0.5))
    assert high == pytest.approx(math.hypot(high_b - 0.5, 0.5 - low_a))


def test_covers_the_difference_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    cells = np.array([0.6, 0.08, 0.14, 0.18])
    drawn = random.multinomial(150, cells, size=2000)
    inside = 0
    for row in drawn.tolist():
        _, low, high = accuracy_difference(PairedCounts(*row))
        inside += low <= 0.06 <= high
    assert 0.93 <= inside / 2000 <= 0.975  # 0.95 nominal; the deviation of the count is 0.005


def test_pairs_are_counted() -> None:
    a = np.array([True, True, False, False, True])
    b = np.array([True, False, True, False, True])
    pairs = PairedCounts.of(a, b)
    assert pairs == PairedCounts(2, 1, 1, 1)
    assert (pairs.n, pairs.a, pairs.b) == (5, 3, 3)
    assert pairs.to_dict() == {"both": 2, "only_a": 1, "only_b": 1, "neither": 1}


@pytest.mark.parametrize(
    ("a", "b", "interval"),
    [  # Newcombe 1998, Statistics in Medicine 17:873, table II, method 10
        ((48, 80), (56, 70), (0.0524, 0.3339)),
        ((3, 10), (9, 10), (0.1705, 0.8090)),
        ((2, 7), (6, 7), (0.0582, 0.8062)),
        ((0, 29), (5, 56), (-0.0381, 0.1926)),
        ((0, 20), (0, 10), (-0.1611, 0.2775)),
        ((0, 10), (10, 10), (0.6075, 1.0)),
    ],
)
def test_of_different_images_it_gives_the_published_intervals(
    a: tuple[int, int], b: tuple[int, int], interval: tuple[float, float]
) -> None:
    shares = [(right / n, *wilson_interval(right, n)) for right, n in (a, b)]
    value, low, high = proportion_difference(shares[0], shares[1])
    assert value == shares[1][0] - shares[0][0]
    assert (low, high) == pytest.approx(interval, abs=5e-5)  # printed to four decimals


def test_in_words() -> None:
    pairs = PairedCounts(1234, 1, 7, 12)
    assert (
        format_paired_counts(pairs)
        == "both right on 1,234, only A on 1, only B on 7, neither on 12"
    )
    assert format_paired_counts(pairs, "x", "y").endswith("only x on 1, only y on 7, neither on 12")
    chances = "McNemar's exact p 0.07, mid-p 0.039"
    assert format_mcnemar_result(pairs) == (
        f"B is ahead, by more than chance gives equal models in 95 of 100: {chances}"
    )
    assert format_mcnemar_result(PairedCounts(5, 7, 1, 12), "x", "y").startswith(
        "x is ahead, by more than chance"
    )
    assert format_mcnemar_result(PairedCounts(5, 1, 3, 12), "x", "y") == (
        "y is ahead, but equal models come as far apart by chance: "
        "McNemar's exact p 0.62, mid-p 0.38"
    )
    assert format_mcnemar_result(PairedCounts(5, 3, 3, 2)) == "neither is ahead"
