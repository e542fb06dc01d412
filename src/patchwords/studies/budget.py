"""What fits into a time: seeds go first, then steps, alike for all cells.

Cells that see fewer images each still answer the question, only less surely; fewer cells would
answer another one. A claim needs seeds, so a study that was trimmed to one tells no verdicts: it
says so on its page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from patchwords.duration import duration
from patchwords.errors import ConfigError

LEAST_STEPS = 100  # of a cell: with fewer nothing is learned that could be compared


@dataclass(frozen=True)
class Speed:
    """What the dearest cell takes on this machine, with all processes at work."""

    step: float  # seconds
    beside: float  # seconds of a cell that are no steps: starting, evaluating


@dataclass(frozen=True)
class Work:
    """A grid of trainings."""

    cells: int
    seeds: int
    steps: int
    jobs: int  # processes that share it

    def seconds(self, speed: Speed) -> float:
        """Of all of it: a process does one cell after the other."""
        rounds = math.ceil(self.cells * self.seeds / self.jobs)
        return rounds * (self.steps * speed.step + speed.beside)


@dataclass(frozen=True)
class Trimmed:
    """How much of it is to be done."""

    seeds: int
    steps: int
    notes: tuple[str, ...]


def trim(work: Work, speed: Speed, minutes: float) -> Trimmed:
    """As much of the work as fits; raises ConfigError where not even the least does."""
    budget = 60 * minutes
    whole = work.seconds(speed)
    at = (
        f"{speed.step:.3g} s a step were measured, so {_said(work.seeds, work.steps)} would take "
        f"{duration(whole)} with {work.jobs} processes"
    )
    for seeds in range(work.seeds, 0, -1):
        if Work(work.cells, seeds, work.steps, work.jobs).seconds(speed) <= budget:
            if seeds == work.seeds:
                return Trimmed(seeds, work.steps, ())
            return Trimmed(seeds, work.steps, (_note(minutes, work, seeds, work.steps, at),))
    rounds = math.ceil(work.cells / work.jobs)
    steps = math.floor((budget / rounds - speed.beside) / speed.step)
    if steps < LEAST_STEPS:
        least = Work(work.cells, 1, min(LEAST_STEPS, work.steps), work.jobs).seconds(speed)
        raise ConfigError(
            f"--budget {minutes:g}: one seed of {work.cells} cells with {LEAST_STEPS} steps each "
            f"takes {duration(least)} here; give {math.ceil(least / 60)} minutes or more"
        )
    return Trimmed(1, steps, (_note(minutes, work, 1, steps, at),))


def _said(seeds: int, steps: int) -> str:
    return f"{seeds} {'seed' if seeds == 1 else 'seeds'} of {steps:,} steps"


def _note(minutes: float, work: Work, seeds: int, steps: int, at: str) -> str:
    return (
        f"Trimmed to a budget of {minutes:g} minutes: {_said(seeds, steps)} a cell in place of "
        f"{_said(work.seeds, work.steps)}. {at[0].upper()}{at[1:]}."
    )
