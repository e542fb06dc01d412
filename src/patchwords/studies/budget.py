"""What fits into a time: seeds go first, then steps, alike for all cells.

Cells that see fewer images each still answer the question, only less surely; fewer cells would
answer another one. A claim needs seeds, so a study that was trimmed to one tells no verdicts: it
says so on its page.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from patchwords.data.dataset import TEST, VALIDATION
from patchwords.errors import ConfigError
from patchwords.files import format_duration
from patchwords.models.build import get_model_family
from patchwords.models.cost import ModelConfig, compute_training_flops, count_macs, count_parameters
from patchwords.models.zoo import resolve_model
from patchwords.planning.estimate import HardwareSetup, TrainingWorkload, estimate_time
from patchwords.planning.hardware import Hardware
from patchwords.planning.memory import OptimizerSpec, ParallelLayout
from patchwords.studies.study import ENCODER, VERB, DatasetSpec, Scale, StudyContext, Trial
from patchwords.studies.training import build_training_config, count_training_flops, train_trial
from patchwords.studies.workers import run_workers
from patchwords.tasks.classification.pretraining import resolve_head
from patchwords.training.config import FinetuneConfig, ModelSettings, PretrainConfig
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.model_setup import (
    DEFAULT_MODEL,
    choose_model_family,
    choose_model_name,
    parse_image_size,
)
from patchwords.training.plan import require_setting
from patchwords.training.recipes import fill_recipe_settings, find_recipe

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
        whole = (steps * share for steps, share in zip(self.steps, shares, strict=True))
        return sum(whole) / len(self.steps)

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


# What a study costs before it is run: by arithmetic on its cells, as `patchwords plan` has it.


MODEL_SETTING_NAMES = ("model", *(field.name for field in fields(ModelSettings)))
ASSUMED_UTILISATION = 0.4  # of the hardware's peak: the assumption of `patchwords plan`


@dataclass(frozen=True)
class TrialCost:
    """Of one cell with one seed."""

    name: str
    parameters: int
    macs: int  # of an image
    images: int  # seen, of all seeds the same
    steps: int
    flops: float
    device_days: float | None  # None: no hardware was named

    @property
    def of_a_step(self) -> float:
        """The compute of one step."""
        return self.flops / self.steps

    @property
    def share(self) -> float:
        """Of what it would take if all weights learned."""
        return self.flops / compute_training_flops(self.macs, self.images) if self.images else 1.0


def resolve_model_config(config: FinetuneConfig, classes: int) -> ModelConfig:
    """The model that a run would train from new weights."""
    if isinstance(config, PretrainConfig):
        config, _ = resolve_head(config, None)
    asked = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    if "image_size" in asked:
        asked["image_size"] = parse_image_size(asked["image_size"])
    named = resolve_model(config.model or DEFAULT_MODEL).config
    if get_model_family(named) == "resnet":  # it has no place for dropout
        asked.pop("dropout", None)
    return named.with_settings(num_classes=classes, **asked)


def replace_encoder_by_shape(cell: Trial, scale: Scale) -> Trial:
    """A cell of the same cost that needs no encoder: with its shape in place of its weights."""
    if ENCODER not in cell.settings:
        return cell
    named = scale.encoders[cell.settings[ENCODER]]
    shape = {name: named[name] for name in MODEL_SETTING_NAMES if name in named}
    if "recipe" in named:
        shape = {"model": find_recipe(named["recipe"]).model, **shape}
    own = {name: value for name, value in cell.settings.items() if name != ENCODER}
    return replace(cell, settings={**shape, **own})


def build_training_workload(
    config: FinetuneConfig, images: DatasetSpec, from_weights: bool = False
) -> TrainingWorkload:
    """The work of a run on so many images."""
    count = config.data_settings.train_images or images.count
    filled, _ = fill_recipe_settings(
        config,
        images=count,
        from_weights=from_weights,
        model=choose_model_name(config, None),
        family=choose_model_family(config, None),
    )
    recipe = filled.recipe
    steps, batch = require_setting(recipe.steps), require_setting(recipe.batch_size)
    update = OptimizerSpec(require_setting(recipe.optimizer), recipe.ema is not None, "bf16")
    shape = resolve_model_config(filled, images.classes)
    return TrainingWorkload(shape, count, steps * batch / count, batch, update)


def build_planned_config(cell: Trial, bench: StudyContext) -> FinetuneConfig:
    """The settings of a run of the same cost as the cell's, which needs no encoder."""
    return build_training_config(replace_encoder_by_shape(cell, bench.scale), bench)


def build_trial_workload(cell: Trial, bench: StudyContext) -> TrainingWorkload | None:
    """The work of a cell; None for one that is no training."""
    if cell.settings[VERB] == "none":
        return None
    images = bench.scale.data if cell.shared and bench.scale.data else bench.scale.learned
    config = build_planned_config(cell, bench)
    pretrained = ENCODER in cell.settings or config.weights is not None
    return build_training_workload(config, images, pretrained)


def estimate_trial_cost(
    cell: Trial, bench: StudyContext, hardware: Hardware | None = None
) -> TrialCost:
    """What a cell takes; with hardware, also how long on one such device.

    What only measures is not counted.
    """
    training = build_trial_workload(cell, bench)
    if training is None:
        return TrialCost(cell.name, 0, 0, 0, 0, 0.0, None if hardware is None else 0.0)
    shape = training.config
    flops = count_training_flops(
        build_planned_config(cell, bench), count_macs(shape), training.seen, training.images
    )
    cost = TrialCost(
        cell.name,
        count_parameters(shape),
        count_macs(shape),
        training.seen,
        training.steps,
        flops,
        None,
    )
    if hardware is None:
        return cost
    machine = HardwareSetup(hardware, ParallelLayout(1, "ddp", False), ASSUMED_UTILISATION)
    return replace(cost, device_days=cost.share * estimate_time(training, machine).device_days)


# How long a cell takes on this machine: a few steps of the dearest one, by the trainer itself.
#
# As many processes measure at once as will share the grid, since they slow one another down.


TIMING_STEPS = 40  # steps
TIMING_LOG_EVERY = 5  # steps of a row of the record; the first row warms up
FORWARD_SHARE = 1 / 3  # of a training step: the backward pass is twice as dear
SCRATCH_PREFIX = ".speed-"  # in the folder of the study; deleted afterwards


def measure_trial_timing(cell: Trial, bench: StudyContext, jobs: int, threads: int) -> TrialTiming:
    """The slowest process counts."""
    found: list[TrialTiming] = []
    timed = partial(time_trial, replace_encoder_by_shape(cell, bench.scale), bench)
    run_workers(timed, jobs, threads, found.append)
    return TrialTiming(max(one.step for one in found), max(one.beside for one in found))


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
