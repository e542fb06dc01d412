"""Labels beside one of them, seed by seed: what figures and tables of differences draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchwords.evaluate.spread import SeedStatistics, compute_seed_statistics
from patchwords.report.words import pluralise

if TYPE_CHECKING:
    from patchwords.report.dots import DotSeries


def compute_paired_differences(
    values: Mapping[str, Sequence[float | None]], one: str, other: str
) -> list[float | None]:
    """How far one label is above the other, seed by seed; None where either diverged."""
    pairs = zip(values[one], values[other], strict=True)
    return [None if a is None or b is None else a - b for a, b in pairs]


def compute_label_gaps(
    results: Mapping[str, Any], names: Sequence[str], usual: str
) -> dict[str, SeedStatistics]:
    """Label -> how far it is above `usual`, over the seeds in which neither diverged.

    A label of which no such seed is left is not there.
    """
    values = {one["label"]: one["values"] for one in results["labels"]}
    found = {}
    for name in names:
        alive = [gap for gap in compute_paired_differences(values, name, usual) if gap is not None]
        if alive:
            found[name] = compute_seed_statistics(alive)
    return found


def build_gap_dots(found: Mapping[str, SeedStatistics]) -> DotSeries:
    """In points, with their intervals."""
    from patchwords.report.dots import DotSeries

    low, high = zip(*map(get_gap_interval, found.values()), strict=True)
    return DotSeries(
        "here",
        [100 * gap.mean for gap in found.values()],
        [100 * value for value in low],
        [100 * value for value in high],
    )


def format_paired_seeds(results: Mapping[str, Any]) -> str:
    """For a caption: what a mean and its interval are over."""
    several = ", paired, with 95 % intervals (t)" if results["seeds"] > 1 else ""
    return f"{pluralise(results['seeds'], 'seed')}{several}"


def get_gap_interval(gap: SeedStatistics) -> tuple[float, float]:
    """The interval; of one seed the value itself, twice."""
    if gap.low is None or gap.high is None:
        return gap.mean, gap.mean
    return gap.low, gap.high


def format_gap(gap: SeedStatistics, times: float = 100.0) -> str:
    """
    >>> format_gap(SeedStatistics(0.012, 0.002, 0.007, 0.017, 3)), format_gap(SeedStatistics(0.012, None, None, None, 1))
    ('+1.2 (+0.7 to +1.7)', '+1.2')
    """
    mean = f"{times * gap.mean:+.1f}"
    if gap.low is None or gap.high is None:
        return mean
    return f"{mean} ({times * gap.low:+.1f} to {times * gap.high:+.1f})"
