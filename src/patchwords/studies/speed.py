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
from patchwords.studies.cost import training_of
from patchwords.studies.crew import work_together
from patchwords.studies.study import Cell, Settings
from patchwords.studies.training import config_of, train
from patchwords.train.journal import read_rows

TRIAL = 40  # steps
ROW = 5  # steps of a row of the record; the first row warms up
FORWARD = 1 / 3  # of a training step: the backward pass is twice as dear
SCRATCH = ".speed-"  # in the folder of the study; deleted afterwards
# What a run does every so many steps, or for so many: its share of the run stays.
BY_STEP = ("warmup_steps", "log_every", "eval_every", "save_every")


def shortened(settings: Settings, steps: int | None) -> dict[str, object]:
    """The settings to change where a cell takes `steps` in place of its own; None: nothing."""
    if steps is None or steps == settings["steps"]:
        return {}
    share = steps / settings["steps"]
    others = {name: settings[name] for name in BY_STEP if settings.get(name)}
    return {"steps": steps, **{name: max(1, round(n * share)) for name, n in others.items()}}


def measure_speed(cells: Sequence[Cell], bench: Bench, jobs: int, threads: int) -> Speed:
    """The slowest process counts."""
    dearest = max(cells, key=lambda cell: training_of(config_of(cell, bench), bench.scale).flops())
    found: list[Speed] = []
    work_together(partial(time_cell, dearest, bench), jobs, threads, found.append)
    return Speed(max(one.step for one in found), max(one.beside for one in found))


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
