"""Human-readable numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

UNKNOWN_VALUE = "\N{EN DASH}"  # for an unknown number
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
RANGE_DASH = "\N{EN DASH}"  # between two ends


def format_percent(value: float | None, digits: int = 1) -> str:
    """Format a share: 0.9317 -> '93.2 %'; 100 % and 0 % only if exact."""
    if value is None or not math.isfinite(value):
        return UNKNOWN_VALUE
    while digits < 4 and (
        (value < 1 and round(100 * value, digits) >= 100)
        or (value > 0 and round(100 * value, digits) == 0)
    ):
        digits += 1
    return f"{100 * value:.{digits}f}{NO_BREAK_SPACE}%"


def format_probability(probability: float) -> str:
    """Format a model's probability: more than one decimal is meaningless."""
    if probability > 0.9995:
        return f">99.9{NO_BREAK_SPACE}%"
    if probability < 0.0005:
        return f"<0.1{NO_BREAK_SPACE}%"
    return f"{100 * probability:.1f}{NO_BREAK_SPACE}%"


def format_count(number: float) -> str:
    """Format a number with separators: 1234567 -> '1,234,567'."""
    return f"{number:,.0f}"


def format_compact(number: float) -> str:
    """Format a number with a unit prefix: 5717416 -> '5.72 M'."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def format_learning_rate(value: float) -> str:
    """Format a learning rate for an axis: 0.00025 -> '2.5e-4', 0.03 -> '0.03'."""
    if value == 0 or value >= 0.01:
        return f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def pluralise(number: int, singular: str, plural: str | None = None) -> str:
    """Format a count with its noun: '1 image', '2 images', '2 classes'."""
    return f"{format_count(number)} {singular if number == 1 else plural or singular + 's'}"


def truncate_name(name: str, length: int) -> str:
    """Cut a long name, marked by an ellipsis."""
    return name if len(name) <= length else name[: length - 1] + "…"


def format_against_random(difference: Mapping[str, Any]) -> str:
    """Format the result of `compare_with_random_maps`."""
    mean, low, high = (difference[key] for key in ("mean", "low", "high"))
    if difference["truer"] is None:
        return f"{mean:+.3f}; one image cannot be compared with chance"
    interval = f"{mean:+.3f} (95 % interval {low:+.3f} to {high:+.3f})"
    if difference["truer"]:
        return f"{interval}: better than chance"
    return f"{interval}: {'worse than' if high < 0 else 'not distinguishable from'} chance"
