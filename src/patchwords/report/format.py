"""Numbers as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

UNKNOWN_VALUE = "\N{EN DASH}"  # in place of a number that is not known
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
RANGE_DASH = "\N{EN DASH}"  # between two ends


def format_percent(value: float | None, digits: int = 1) -> str:
    """0.9317 -> '93.2 %'; what is not all is never written as 100 %, nor what is some as 0 %."""
    if value is None or not math.isfinite(value):
        return UNKNOWN_VALUE
    while digits < 4 and (
        (value < 1 and round(100 * value, digits) >= 100)
        or (value > 0 and round(100 * value, digits) == 0)
    ):
        digits += 1
    return f"{100 * value:.{digits}f}{NO_BREAK_SPACE}%"


def format_probability(probability: float) -> str:
    """A model's probability: beyond one decimal it means nothing."""
    if probability > 0.9995:
        return f">99.9{NO_BREAK_SPACE}%"
    return (
        f"<0.1{NO_BREAK_SPACE}%"
        if probability < 0.0005
        else f"{100 * probability:.1f}{NO_BREAK_SPACE}%"
    )


def format_count(number: float) -> str:
    """1234567 -> '1,234,567'."""
    return f"{number:,.0f}"


def format_compact(number: float) -> str:
    """5717416 -> '5.72 M'."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def format_learning_rate(value: float) -> str:
    """A learning rate, short enough for an axis: 0.00025 -> '2.5e-4', 0.03 -> '0.03'."""
    if value == 0 or value >= 0.01:
        return f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def pluralise(number: int, one: str, many: str | None = None) -> str:
    """'1 image', '2 images', '2 classes'."""
    return f"{format_count(number)} {one if number == 1 else many or one + 's'}"


def truncate_name(name: str, length: int) -> str:
    """A long name cut to a length, with the mark that it was."""
    return name if len(name) <= length else name[: length - 1] + "…"


def format_against_random(beside: Mapping[str, Any]) -> str:
    """What `inspect.verdict.against_random` found."""
    if beside["truer"] is None:
        return f"{beside['mean']:+.3f}; one image says nothing of chance"
    interval = (
        f"{beside['mean']:+.3f} (95 % interval {beside['low']:+.3f} to {beside['high']:+.3f})"
    )
    if beside["truer"]:
        return f"{interval}: better than chance"
    return f"{interval}: {'worse than' if beside['high'] < 0 else 'not told from'} chance"
