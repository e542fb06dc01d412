"""What fits into a time: seeds go first, then steps, alike for all cells.

Cells that see fewer images each still answer the question, only less surely; fewer cells would
answer another one. A claim needs seeds, so a study that was trimmed to one tells no verdicts: it
says so on its page.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace

from patchwords.duration import format_duration
from patchwords.errors import ConfigError

MIN_STEPS = 100  # of a cell: with fewer nothing is learned that could be compared


@dataclass(frozen=True)
class TrialTiming:
    """What the dearest cell takes on this machine, with all processes at work."""

    step: float  # seconds
    beside: float  # seconds of a cell that are no steps: starting, evaluating


@dataclass(frozen=True)
class StudyWorkload:
    """The trainings of a study."""

    steps: tuple[int, ...]  # of each, for one seed
    seeds: int
    jobs: int  # processes that share them
    shares: tuple[float, ...] | None = None  # of each, what its step takes beside a whole one

    def seconds(self, speed: TrialTiming, share: float = 1.0) -> float:
        """Of all of it, as if all were as dear: a process does one after the other."""
        rounds = math.ceil(len(self.steps) * self.seeds / self.jobs)
        return rounds * (share * self.mean * speed.step + speed.beside)

    @property
    def mean(self) -> float:
        """Whole steps of a training: where the head alone learns they are hardly any."""
        shares = self.shares or (1.0,) * len(self.steps)
        return sum(map(operator.mul, self.steps, shares)) / len(self.steps)

    @property
    def words(self) -> str:
        return f"{self.seeds} {'seed' if self.seeds == 1 else 'seeds'}"


@dataclass(frozen=True)
class TrimmedWorkload:
    """How much of it is to be done."""

    seeds: int
    share: float  # of the steps
    notes: tuple[str, ...]


def trim_workload(work: StudyWorkload, speed: TrialTiming, minutes: float) -> TrimmedWorkload:
    """As much of the work as fits; raises ConfigError where not even the least does."""
    budget = 60 * minutes
    for seeds in range(work.seeds, 0, -1):
        kept = replace(work, seeds=seeds)
        if kept.seconds(speed) <= budget:
            notes = () if kept == work else (_format_trim_note(minutes, work, kept, 1.0, speed),)
            return TrimmedWorkload(seeds, 1.0, notes)
    kept = replace(work, seeds=1)
    rounds = math.ceil(len(work.steps) / work.jobs)
    share = (budget / rounds - speed.beside) / speed.step / work.mean
    least = min(1.0, MIN_STEPS / min(work.steps))
    if share < least:
        needed = kept.seconds(speed, least)
        raise ConfigError(
            f"--budget {minutes:g}: one seed of {len(work.steps)} trainings with {MIN_STEPS} "
            f"steps or more takes {format_duration(needed)} here; give {math.ceil(needed / 60)} minutes "
            "or more"
        )
    return TrimmedWorkload(1, share, (_format_trim_note(minutes, work, kept, share, speed),))


def _format_trim_note(
    minutes: float, work: StudyWorkload, kept: StudyWorkload, share: float, speed: TrialTiming
) -> str:
    steps = "all steps" if share == 1 else f"{share:.0%} of the steps"
    return (
        f"Trimmed to a budget of {minutes:g} minutes: {kept.words} in place of {work.words}, with "
        f"{steps} of each of {len(work.steps)} trainings. {speed.step:.3g} s a step were measured "
        f"for the dearest one; the whole would take {format_duration(work.seconds(speed))} with "
        f"{work.jobs} {'process' if work.jobs == 1 else 'processes'}."
    )
