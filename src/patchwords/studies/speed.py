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
from patchwords.studies.bench import Bench
from patchwords.studies.budget import Speed
from patchwords.studies.cost import cost_of, from_scratch
from patchwords.studies.crew import work_together
from patchwords.studies.study import Cell
from patchwords.studies.training import train
from patchwords.train.journal import read_rows

TRIAL = 40  # steps
ROW = 5  # steps of a row of the record; the first row warms up
FORWARD = 1 / 3  # of a training step: the backward pass is twice as dear
SCRATCH = ".speed-"  # in the folder of the study; deleted afterwards


def measure_speed(cells: Sequence[Cell], bench: Bench, jobs: int, threads: int) -> Speed:
    """The slowest process counts."""
    dearest = from_scratch(max(cells, key=lambda cell: of_a_step(cell, bench)), bench.scale)
    found: list[Speed] = []
    work_together(partial(time_cell, dearest, bench), jobs, threads, found.append)
    return Speed(max(one.step for one in found), max(one.beside for one in found))


def of_a_step(cell: Cell, bench: Bench) -> float:
    """The compute of one step."""
    cost = cost_of(cell, bench)
    return cost.flops / cost.steps


def time_cell(cell: Cell, bench: Bench, tell: Callable[[Speed], None]) -> None:
    """Train a cell for a moment, in a folder that is thrown away."""
    settings = cell.settings
    brief = {"steps": TRIAL, "log_every": ROW, "eval_every": TRIAL, "save_every": TRIAL}
    short = replace(cell, settings={**settings, **brief, "warmup_steps": 0})
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=bench.folder) as scratch:
        trial = replace(bench, folder=Path(scratch))
        trial.place(short).mkdir(parents=True)
        start = time.monotonic()
        job = train(short, trial)
        other = time.monotonic() - start - job.state.seconds
        rows = [row for row in read_rows(job.folder.metrics) if row["kind"] == "train"]
    step = statistics.median(row["batch_seconds"] for row in rows[1:])
    looks = settings["steps"] // settings["eval_every"] if settings.get("eval_every") else 1
    images = {name: len(part) for name, part in job.data.splits.items()}
    asked = images.get(TEST, 0) + looks * images.get(VALIDATION, 0)
    # A run is opened twice: to train, and to be judged.
    tell(Speed(step, 2 * other + FORWARD * step * asked / job.plan.batch_size))
