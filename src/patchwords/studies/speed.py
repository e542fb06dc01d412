"""How long a cell takes on this machine: a few steps of the dearest one, by the trainer itself.

As many processes measure at once as will share the grid, since they slow one another down.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from patchwords.data.examples import TEST, VALIDATION
from patchwords.studies.bench import StudyContext
from patchwords.studies.budget import TrialTiming
from patchwords.studies.cost import estimate_trial_cost, replace_encoder_by_shape
from patchwords.studies.crew import run_workers
from patchwords.studies.study import Trial
from patchwords.studies.training import train_trial
from patchwords.train.journal import read_metrics

TIMING_STEPS = 40  # steps
TIMING_LOG_EVERY = 5  # steps of a row of the record; the first row warms up
FORWARD_SHARE = 1 / 3  # of a training step: the backward pass is twice as dear
SCRATCH_PREFIX = ".speed-"  # in the folder of the study; deleted afterwards


def measure_trial_timing(
    cells: Sequence[Trial], bench: StudyContext, jobs: int, threads: int
) -> TrialTiming:
    """The slowest process counts."""
    dearest = replace_encoder_by_shape(
        max(cells, key=lambda cell: of_a_step(cell, bench)), bench.scale
    )
    found: list[TrialTiming] = []
    run_workers(partial(time_trial, dearest, bench), jobs, threads, found.append)
    return TrialTiming(max(one.step for one in found), max(one.beside for one in found))


def of_a_step(cell: Trial, bench: StudyContext) -> float:
    """The compute of one step."""
    cost = estimate_trial_cost(cell, bench)
    return cost.flops / cost.steps


def time_trial(cell: Trial, bench: StudyContext, tell: Callable[[TrialTiming], None]) -> None:
    """Train a cell for a moment, in a folder that is thrown away."""
    settings = cell.settings
    brief = {
        "steps": TIMING_STEPS,
        "log_every": TIMING_LOG_EVERY,
        "eval_every": TIMING_STEPS,
        "save_every": TIMING_STEPS,
    }
    short = replace(cell, settings={**settings, **brief, "warmup_steps": 0})
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=bench.folder) as scratch:
        trial = replace(bench, folder=Path(scratch))
        trial.place(short).mkdir(parents=True)
        start = time.monotonic()
        job = train_trial(short, trial)
        other = time.monotonic() - start - job.state.seconds
        rows = [row for row in read_metrics(job.folder.metrics) if row["kind"] == "train"]
    step = statistics.median(row["batch_seconds"] for row in rows[1:])
    looks = settings["steps"] // settings["eval_every"] if settings.get("eval_every") else 1
    images = {name: len(part) for name, part in job.data.splits.items()}
    asked = images.get(TEST, 0) + looks * images.get(VALIDATION, 0)
    # A run is opened twice: to train, and to be judged.
    tell(TrialTiming(step, 2 * other + FORWARD_SHARE * step * asked / job.plan.batch_size))
