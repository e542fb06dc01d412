"""The time that a run has, counted down; its schedule is cut where the machine turns out slower.

A run with --budget gets its number of steps from seconds of measurement. At a few stated shares of
the schedule the time that has passed is compared with it. Where the run would overrun, fewer steps
are taken and the rest of the schedule passes faster (`TrainingPlan.place`). A cut is in
RUN/budget.json before the next checkpoint, so that a resumed run has the same schedule.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from patchwords.errors import ConfigError
from patchwords.files import write_atomically
from patchwords.training.plan import ScheduleCut, TrainingPlan

# (share of the schedule, how many times the budget the run may be on its way to take): the first
# steps are slower than the others, so that early only a large difference counts.
CHECKS = ((0.05, 2.0), (0.1, 1.5), (0.25, 1.2), (0.5, 1.1), (0.75, 1.1), (0.9, 1.1))


@dataclass(frozen=True)
class TimeBudget:
    """The time of a run, how it was to be spent, and the cuts that were made."""

    seconds: float  # of --budget
    loop: float  # expected for all steps, with the evaluations between them
    end: float  # expected after the last step
    measured: bool = True  # whether `loop` was; then the end is as much slower as the steps are
    cuts: tuple[ScheduleCut, ...] = ()


class Countdown:
    """The time that is left, from the start of the command on."""

    def __init__(
        self, budget: TimeBudget, spent: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.budget, self.clock = budget, clock
        self.started = clock() - spent
        self.loop_started, self.first_step = self.started, 0

    @property
    def left(self) -> float:
        """Seconds of the budget that are left; below 0: it is overrun."""
        return self.budget.seconds - (self.clock() - self.started)

    def begin_loop(self, step: int) -> None:
        """Note when the first step begins: what comes before is not of the pace."""
        self.loop_started, self.first_step = self.clock(), step

    def find_cut(self, step: int, plan: TrainingPlan) -> ScheduleCut | None:
        """Decide whether to cut the schedule after a step; None: it stays."""
        checks = {max(1, round(share * plan.last_step)): limit for share, limit in CHECKS}
        limit = checks.get(step)
        done = step - self.first_step
        if limit is None or done < 1 or (plan.cuts and plan.cuts[-1].step >= step):
            return None
        pace = (self.clock() - self.loop_started) / done  # seconds of a step
        slower = max(1.0, pace * plan.steps / self.budget.loop) if self.budget.measured else 1.0
        after_loop = self.left - slower * self.budget.end  # seconds for the steps that are left
        needed = pace * (plan.last_step - step)
        if needed - after_loop <= (limit - 1) * self.budget.seconds:
            return None
        steps = step + max(1, int(after_loop / pace))
        return ScheduleCut(step, steps) if steps < plan.last_step else None


def write_time_budget(path: Path, budget: TimeBudget) -> None:
    """Write the budget of a run with its cuts."""
    write_atomically(path, json.dumps(asdict(budget), indent=2) + "\n")


def read_time_budget(path: Path) -> TimeBudget | None:
    """Read the budget of a run; None where it has none. Raises ConfigError for a damaged file."""
    if not path.is_file():
        return None
    try:
        budget = TimeBudget(**json.loads(path.read_text(encoding="utf-8")))
        return replace(budget, cuts=tuple(ScheduleCut(**cut) for cut in budget.cuts))  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged, so the run cannot go on exactly: {error}; start again with "
            "--overwrite"
        ) from error
