"""Verdicts by hand-made numbers; Student's t from scipy, written out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from scipy import stats

from patchwords.studies.results import Difference, compute_ps, format_claim_rule, judge_claim
from patchwords.studies.study import ACCURACY_UNIT, Claim, Contrast, ValuesByLabel

Values = Mapping[int, float | None]
BETTER = Claim("a beats b", "paper", ("a", "c"), ("b",))
ALIKE = Claim("a is as good as b", "paper", ("a",), ("b",), margin=0.02)


def table(a: Sequence[float | None], b: Sequence[float | None]) -> dict[str, Values]:
    both = {"a": a, "b": b, "c": a}
    return {name: dict(enumerate(values)) for name, values in both.items()}


def test_the_difference_is_paired_by_seed() -> None:
    """Seeds far apart, differences close together: 0.11, 0.12, 0.10."""
    found = judge_claim(BETTER, table([0.31, 0.52, 0.90], [0.20, 0.40, 0.80]))
    assert found.whole.values == pytest.approx((0.11, 0.12, 0.10))
    half = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)
    assert found.whole.statistics is not None
    assert found.whole.statistics.low == pytest.approx(0.11 - half)
    assert found.whole.statistics.high == pytest.approx(0.11 + half)
    assert found.name == "agrees"


def test_the_mean_of_a_group_counts() -> None:
    values: ValuesByLabel = {"a": {0: 0.5}, "b": {0: 0.3}, "c": {0: 0.1}}
    assert judge_claim(BETTER, values).whole.values == (pytest.approx(0.0),)


@pytest.mark.parametrize(
    ("claim", "b", "word"),
    [
        (BETTER, [0.40, 0.51, 0.61], "agrees"),
        (BETTER, [0.60, 0.71, 0.81], "disagrees"),
        (BETTER, [0.40, 0.71, 0.61], "cannot tell at this scale"),
        (ALIKE, [0.501, 0.600, 0.699], "agrees"),
        (ALIKE, [0.40, 0.51, 0.61], "disagrees"),
        (ALIKE, [0.60, 0.71, 0.81], "disagrees"),
        (ALIKE, [0.49, 0.60, 0.71], "agrees"),  # 90 % interval 1.7 points, 95 % 2.5
        (ALIKE, [0.48, 0.60, 0.72], "cannot tell at this scale"),
    ],
)
def test_the_rule(claim: Claim, b: list[float | None], word: str) -> None:
    assert judge_claim(claim, table([0.50, 0.60, 0.70], b)).name == word


@pytest.mark.parametrize("margin", [None, 0.02])
def test_one_seed_never_tells(margin: float | None) -> None:
    claim = Claim("", "", ("a",), ("b",), margin)
    found = judge_claim(claim, table([0.9], [0.1]))
    assert found.name == "cannot tell at this scale"
    assert compute_ps(Difference((), (0,), None), margin) == (1.0, 1.0)


def test_a_seed_that_diverged_is_named_and_left_out() -> None:
    found = judge_claim(BETTER, table([0.5, None, 0.7], [0.1, 0.2, 0.3]))
    assert found.whole.diverged_seeds == (1,)
    assert found.whole.values == pytest.approx((0.4, 0.4))
    lost = judge_claim(BETTER, table([None, None], [0.1, 0.2]))
    assert lost.whole.statistics is None
    assert lost.name == "cannot tell at this scale"


BETTER_B = [0.40, 0.51, 0.61]  # than a: 0.10, 0.09, 0.09
CONTROLLED = replace(BETTER, controls=(Contrast("c less d", ("c",), ("d",)),))


@pytest.mark.parametrize(
    ("d", "word"),
    [
        ([0.30, 0.41, 0.50], "agrees"),  # the control lies above zero
        ([0.50, 0.60, 0.70], "not tested here"),
        ([0.60, 0.71, 0.80], "not tested here"),
        ([0.30, 0.61, 0.70], "not tested here"),  # nobody knows
        ([None, None, None], "not tested here"),
    ],
)
def test_a_claim_whose_control_fails_was_not_tested(d: list[float | None], word: str) -> None:
    values = table([0.50, 0.60, 0.70], BETTER_B) | {"d": dict(enumerate(d))}
    assert judge_claim(CONTROLLED, values).name == word


def test_what_cannot_be_told_by_one_seed_is_not_called_untested() -> None:
    values = table([0.50], [0.40]) | {"d": {0: 0.50}}
    assert judge_claim(CONTROLLED, values).name == "cannot tell at this scale"


@pytest.mark.parametrize(
    ("d", "word"),
    [
        ([0.40, 0.51, 0.60], "agrees"),
        ([0.50, 0.60, 0.70], "cannot tell at this scale"),
        ([0.60, 0.71, 0.80], "cannot tell at this scale"),
    ],
)
def test_a_claim_of_parts_is_told_where_all_say_the_same(d: list[float], word: str) -> None:
    """The mean of both parts agrees in all three."""
    values = table([0.50, 0.60, 0.70], [0.10, 0.21, 0.30]) | {"d": dict(enumerate(d))}
    parts = Contrast("b", ("a",), ("b",)), Contrast("d", ("a",), ("d",))
    whole = Claim("a beats both", "paper", ("a",), ("b", "d"))
    assert judge_claim(whole, values).name == "agrees"
    assert judge_claim(replace(whole, parts=parts), values).name == word


def test_what_a_scale_cannot_test_is_said_whatever_was_measured() -> None:
    values = table([0.50, 0.60, 0.70], BETTER_B)
    assert judge_claim(BETTER, values).name == "agrees"
    found = judge_claim(BETTER, values, "too short")
    assert (found.name, found.untested) == ("not tested here", "too short")


def test_the_rule_in_words() -> None:
    assert format_claim_rule(BETTER, ACCURACY_UNIT) == "a and c minus b is above 0"
    assert (
        format_claim_rule(ALIKE, ACCURACY_UNIT)
        == "a minus b is within 2 points of 0, by two one-sided tests"
    )
    parts = replace(CONTROLLED, parts=(Contrast("b", ("a",), ("b",)),))
    assert format_claim_rule(parts, ACCURACY_UNIT) == (
        "a and c minus b is above 0, in each part as well; control: c less d, above 0"
    )
