"""Seconds of a call, of several contenders in turns; and how many times one is as good as another.

A shared machine is faster at one moment than at the next. So contenders alternate, A B A B, and
are compared with what the other did in the same round: only then is a ratio one of theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Call = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """How many times as good ours is: the median over the rounds, and the quartiles around it."""

    median: float
    low: float
    high: float


def ratio(ours: Sequence[float], theirs: Sequence[float], more_is_better: bool = False) -> Ratio:
    """Above 1 where ours is better; one number of each for every round.

    >>> ratio([1.0, 1.0, 1.0], [2.0, 3.0, 2.0]).median
    2.0
    """
    paired = np.divide(ours, theirs) if more_is_better else np.divide(theirs, ours)
    low, median, high = np.percentile(paired, (25, 50, 75)).tolist()
    return Ratio(median, low, high)


def interleave(
    contenders: Mapping[str, Call],
    rounds: int,
    seconds: float,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Name -> seconds of a call, one number for each round.

    In a round each is called again and again for at least so many `seconds`. `wait` returns when a
    device has done what it was asked for.
    """
    for call in contenders.values():  # the first call sets up what later ones find
        call()
        call()
    wait()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            found[name].append(repeated(call, seconds, wait))
    return found


def repeated(call: Call, seconds: float, wait: Callable[[], object]) -> float:
    """Mean seconds of a call, over calls that take `seconds` together."""
    started, count, took = time.perf_counter(), 0, 0.0
    while not count or took < seconds:
        call()
        wait()
        count += 1
        took = time.perf_counter() - started
    return took / count
