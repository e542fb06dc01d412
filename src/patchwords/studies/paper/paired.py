"""Labels beside one of them, seed by seed: what figures and tables of differences draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.evaluate.spread import Spread, spread


def gaps(results: Mapping[str, Any], names: Sequence[str], usual: str) -> dict[str, Spread]:
    """Label -> how far it is above `usual`, over the seeds in which neither diverged.

    A label of which no such seed is left is not there.
    """
    values = {one["label"]: one["values"] for one in results["labels"]}
    found = {}
    for name in names:
        pairs = zip(values[name], values[usual], strict=True)
        alive = [a - b for a, b in pairs if a is not None and b is not None]
        if alive:
            found[name] = spread(alive)
    return found


def ends(gap: Spread) -> tuple[float, float]:
    """The interval; of one seed the value itself, twice."""
    if gap.low is None or gap.high is None:
        return gap.mean, gap.mean
    return gap.low, gap.high


def told(gap: Spread, times: float = 100.0) -> str:
    """
    >>> told(Spread(0.012, 0.002, 0.007, 0.017, 3)), told(Spread(0.012, None, None, None, 1))
    ('+1.2 (+0.7 to +1.7)', '+1.2')
    """
    mean = f"{times * gap.mean:+.1f}"
    if gap.low is None or gap.high is None:
        return mean
    return f"{mean} ({times * gap.low:+.1f} to {times * gap.high:+.1f})"
