"""A training fitted to a time: `--budget 15m` becomes a number of steps.

A few steps are taken and timed, with the loader and on a copy of everything, and thrown away: the
run itself starts as if they had never been. What is decided is written down as steps, so that a
resumed run measures nothing; engine/countdown.py cuts them where the machine turns out slower.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from patchwords.data.dataset import TEST, TRAIN, VALIDATION, DatasetSplits
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.errors import ConfigError
from patchwords.files import format_duration
from patchwords.training.config import FinetuneConfig
from patchwords.training.engine.countdown import TimeBudget
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.state import build_train_state
from patchwords.training.engine.step import train_step
from patchwords.training.inputs.batches import build_batch_preparer, iterate_training_batches
from patchwords.training.inputs.frozen import (
    build_frozen_backbone,
    count_augmented_views,
    explain_changing_activations,
)
from patchwords.training.logs.run_folder import RunFolder
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import Objective
from patchwords.training.plan import (
    ResolvedSetting,
    TrainingPlan,
    build_training_plan,
    require_setting,
)
from patchwords.training.recipes.defaults import choose_eval_interval
from patchwords.training.training_run import TrainingRun

FORWARD_SHARE = 1 / 3  # of a training step: the backward pass costs twice the forward pass
WARM_UP_STEPS, MIN_TIMED_STEPS, TIMED_SECONDS = 3, 5, 4.0
REPORT_SECONDS = 15.0  # start, the end's own evaluation and the report, without their images
USED_SHARE = 0.9  # of the budget: the rest is for a machine that turns out slower
HEAD_STEP_SECONDS = 0.005  # a step of the head alone on stored features, 64 images: at most
MIN_SHARE = 1 / 4  # of the recipe's steps; fewer, and a cheaper model is taken where there is one

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class ResolvedModel(NamedTuple):
    """A training with every setting decided, before it has a folder."""

    config: FinetuneConfig
    start: InitialModel
    objective: Objective
    choices: list[ResolvedSetting]
    eval_every: int | None = None  # what the user says
    budget: TimeBudget | None = None


Resolve = Callable[[FinetuneConfig], ResolvedModel]


def parse_budget(text: str) -> float:
    """Read a time: -> seconds; raises ConfigError.

    >>> parse_budget("15m"), parse_budget("1h30m"), parse_budget("90s")
    (900.0, 5400.0, 90.0)
    """
    compact = text.replace(" ", "").lower()
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", compact)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != compact or not seconds:
        raise ConfigError(f"--budget {text!r}: give a time with its unit, as 15m, 90s or 1h30m")
    return float(seconds)


@dataclass(frozen=True)
class BudgetWorkload:
    """What a training costs in time, in units of one measured step."""

    step: float  # seconds, waiting for data included
    steps_per_epoch: int
    validation: float  # in steps: one evaluation on the validation images
    test: float  # in steps: the evaluation at the end
    max_steps: int  # the recipe's
    before: float = 0.0  # seconds before the first step: frozen layers that are computed once
    eval_every: int | None = None  # steps, where the user says so

    def loop_seconds(self, steps: int) -> float:
        """Estimate the time of the steps, with the evaluations between them."""
        every = self.eval_every or choose_eval_interval(max(steps, 1), self.steps_per_epoch)
        return self.step * (steps + max(1, steps // every) * self.validation)

    @property
    def end_seconds(self) -> float:
        """Estimate the time after the last step: the evaluation and the report."""
        return REPORT_SECONDS + self.step * self.test

    def seconds(self, steps: int) -> float:
        """Estimate the time of a training with everything around it."""
        return self.before + self.loop_seconds(steps) + self.end_seconds

    def fit(self, seconds: float) -> int:
        """Return the most steps, in whole epochs, that fit into a time; 0: not one epoch."""
        per_epoch = min(self.steps_per_epoch, self.max_steps)
        if self.seconds(self.max_steps) <= seconds:
            return self.max_steps
        low, high = 0, self.max_steps // per_epoch  # in epochs: `low` fits, `high` + 1 does not
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(middle * per_epoch) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low * per_epoch


def fit_to_budget(
    candidates: list[FinetuneConfig], resolve: Resolve, data: DatasetSplits, device: Device
) -> tuple[FinetuneConfig, str, TimeBudget]:
    """Choose the first candidate that fits, and its steps; -> config, reason of the steps, time.

    A candidate fits with MIN_SHARE of the steps of its recipe; the last one, with an epoch.
    Raises ConfigError where not even that fits, with the least time.
    """
    budget = require_setting(candidates[0].budget)
    if get_world().size > 1:
        raise ConfigError(
            f"--budget {budget} is measured in one process, and there are {get_world().size}; "
            "give --steps or --epochs"
        )
    seconds = parse_budget(budget)
    usable = USED_SHARE * seconds
    for candidate in candidates:
        resolved = resolve(candidate)
        work = measure_workload(resolved, data, device)
        steps = work.fit(usable)
        enough = math.ceil(MIN_SHARE * work.max_steps)
        if steps >= enough or (candidate is candidates[-1] and steps):
            why = explain_steps(work, steps, budget)
            recipe = replace(candidate.recipe, steps=steps)
            time_budget = TimeBudget(
                seconds, work.loop_seconds(steps), work.end_seconds, measured=not work.before
            )
            return replace(candidate, recipe=recipe, budget=None), why, time_budget
    least = work.seconds(min(work.steps_per_epoch, work.max_steps)) / USED_SHARE
    raise ConfigError(
        f"--budget {budget}: one epoch of {len(data.splits[TRAIN]):,} images with the evaluation "
        f"takes {format_duration(least)} here; give {int(least // 60) + 1}m or more, or fewer "
        "images with --train-images"
    )


def explain_steps(work: BudgetWorkload, steps: int, budget: str) -> str:
    epochs = steps / work.steps_per_epoch
    whole = format_duration(work.seconds(steps))
    limit = "all that the recipe has" if steps == work.max_steps else f"what fits into {budget}"
    first = f", {format_duration(work.before)} of it for features" if work.before else ""
    pace = f"{1000 * work.step:.3g} ms a step"
    return f"{epochs:.3g} epochs, {limit}: about {whole} in all{first}, {pace}"


def measure_workload(
    resolved: ResolvedModel, data: DatasetSplits, device: Device
) -> BudgetWorkload:
    """Time a few steps of a training, and count what else it will compute."""
    config, images = resolved.config, len(data.splits[TRAIN])
    plan = build_training_plan(config, images)
    seconds = measure_step_seconds(resolved, data, device, plan)
    steps_per_epoch = max(1, -(-images // plan.batch_size))
    validation = len(data.splits.get(VALIDATION, ())) / plan.batch_size
    test = len(data.splits.get(TEST, ())) / plan.batch_size or validation
    work = BudgetWorkload(
        seconds,
        steps_per_epoch,
        FORWARD_SHARE * validation,
        FORWARD_SHARE * test,
        plan.steps,
        eval_every=resolved.eval_every,
    )
    if not keeps_features(resolved, plan):
        return work
    # A step on the whole model is as good as a forward pass: it goes back through the head alone.
    views = count_augmented_views(config, plan)
    return replace(
        work,
        step=HEAD_STEP_SECONDS,
        validation=validation,
        test=test * seconds / HEAD_STEP_SECONDS,
        before=seconds * (views * steps_per_epoch + validation),
    )


def keeps_features(resolved: ResolvedModel, plan: TrainingPlan) -> bool:
    """Whether the head learns from features that are computed before the first step."""
    config, start = resolved.config, resolved.start
    front = build_frozen_backbone(start.model, config.recipe.train)
    if front is None or config.recipe.train != "head" or config.machine.frozen == "compute":
        return False
    kept = resolved.objective.caches_frozen
    return kept and not explain_changing_activations(config, plan, front, start.preprocess)


def measure_step_seconds(
    resolved: ResolvedModel,
    data: DatasetSplits,
    device: Device,
    plan: TrainingPlan,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Train a copy for a few steps; -> mean seconds of a step, waiting for its images included."""
    config, start, objective, *_ = resolved
    machine = replace(config.machine, compile="no", frozen="compute")
    objective.config = config = replace(config, machine=machine)
    gpus = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        state = build_train_state(config, plan, start, data, objective, device)
        run = TrainingRun(
            config, data, start, objective, plan, device, RunFolder(Path()), state, None
        )
        prepare = build_batch_preparer(run)
        settings = StepSettings(device, config.seed, plan.rate, config.recipe.clip, 0)
        batches: Any = iterate_training_batches(run)
        count, begun = 0, clock()
        with closing(batches):
            for number, batch in enumerate(islice(batches, plan.steps)):
                state.model.train()
                train_step(state, objective, prepare(batch, state.step), settings)
                if device.type == "cuda":
                    torch.cuda.synchronize(device.torch_device)
                if number + 1 == min(WARM_UP_STEPS, plan.steps - 1):
                    count, begun = 0, clock()
                    continue
                count += 1
                if count >= MIN_TIMED_STEPS and clock() - begun >= TIMED_SECONDS:
                    break
            return (clock() - begun) / max(1, count)
