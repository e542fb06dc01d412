from __future__ import annotations

import math

import pytest

from patchwords.training.plan import STAIRCASE_DROPS, learning_rate


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("cosine", 0, 0.0),
        ("cosine", 3, 0.2 * 3 / 10),
        ("cosine", 10, 0.2),
        ("cosine", 10 + 30, 0.2 * (1 + math.cos(math.pi / 3)) / 2),
        ("cosine", 55, 0.1),
        ("cosine", 100, 0.0),
        ("cosine", 1000, 0.0),
        ("linear", 0, 0.0),
        ("linear", 10, 0.2),
        ("linear", 55, (0.2 + 1e-5) / 2),
        ("linear", 100, 1e-5),
        ("linear", 1000, 1e-5),
        ("constant", 0, 0.0),
        ("constant", 9, 0.18),
        ("constant", 10, 0.2),
        ("constant", 1000, 0.2),
    ],
)
def test_values(schedule: str, step: int, expected: float) -> None:
    rate = learning_rate(step, peak=0.2, steps=100, warmup_steps=10, schedule=schedule)
    assert rate == pytest.approx(expected, rel=1e-12, abs=1e-17)


def hyperrule(step: int, supports: list[int], base: float = 0.003) -> float:
    """`get_lr` of big_transfer's bit_hyperrule.py in other words, up to the last step."""
    if step < supports[0]:
        return base * step / supports[0]
    passed = sum(support < step for support in supports[1:])
    return base / 10**passed


@pytest.mark.parametrize(
    ("supports", "drops"),
    [
        ([100, 200, 300, 400, 500], (0.4, 0.6, 0.8)),
        ([500, 3000, 6000, 9000, 10_000], STAIRCASE_DROPS),
        ([500, 6000, 12_000, 18_000, 20_000], STAIRCASE_DROPS),
    ],
)
def test_the_staircase_is_that_of_bit(supports: list[int], drops: tuple[float, ...]) -> None:
    steps = supports[-1]
    for step in range(0, steps, 7 if steps > 500 else 1):
        rate = learning_rate(
            step,
            peak=0.003,
            steps=steps,
            warmup_steps=supports[0],
            schedule="staircase",
            drops=drops,
        )
        assert rate == pytest.approx(hyperrule(step, supports), rel=1e-12), step


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "staircase"])
def test_without_warmup_the_first_step_has_the_peak(schedule: str) -> None:
    assert learning_rate(0, peak=0.3, steps=7, warmup_steps=0, schedule=schedule) == 0.3


def test_linear_never_rises_above_a_tiny_peak() -> None:
    rates = [
        learning_rate(s, peak=1e-6, steps=11, warmup_steps=0, schedule="linear") for s in range(12)
    ]
    assert rates == [1e-6] * 12


def test_warmup_as_long_as_the_run_or_longer() -> None:
    assert learning_rate(5, peak=1.0, steps=5, warmup_steps=5) == 1.0
    assert learning_rate(4, peak=1.0, steps=5, warmup_steps=50) == 4 / 50


def test_rises_then_falls() -> None:
    rates = [learning_rate(step, peak=1.0, steps=97, warmup_steps=13) for step in range(98)]
    assert rates[:14] == sorted(rates[:14])
    assert rates[13:] == sorted(rates[13:], reverse=True)
    assert max(rates) == rates[13] == 1.0
