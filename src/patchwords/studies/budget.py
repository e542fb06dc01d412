"""Cost and duration of a study, and how to fit it into a time budget.

Seeds are cut first, then steps, in all trials alike: trials with fewer steps still answer the
question, less precisely; fewer trials would answer another question. A claim needs seeds, so a
study cut to one seed has no verdicts and says so on its page.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
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
from patchwords.training.budget import FORWARD_SHARE
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

MIN_OVERHEAD = 1.0  # seconds: no training opens its data and evaluates in less
MIN_STEPS = 100  # per trial: with fewer, models learn too little to compare


@dataclass(frozen=True)
class TrialTiming:
    """Measured time of the most expensive trial with all worker processes busy."""

    step: float  # seconds
    overhead: float  # seconds per trial outside steps: start-up, evaluation


@dataclass(frozen=True)
class StudyWorkload:
    """The trainings of a study and the processes that share them."""

    steps: tuple[int, ...]  # of each training of one seed
    seeds: int
    jobs: int  # processes that share them
    shares: tuple[float, ...] | None = None  # cost of a step of each, relative to a full one

    def seconds(self, speed: TrialTiming, share: float = 1.0) -> float:
        """Estimate the total time as if every trial cost as much as the most expensive one."""
        rounds = math.ceil(len(self.steps) * self.seeds / self.jobs)
        return rounds * (share * self.mean * speed.step + speed.overhead)

    @property
    def mean(self) -> float:
        """Mean steps per training, weighted by the cost of a step."""
        shares = self.shares or (1.0,) * len(self.steps)
        whole = (steps * share for steps, share in zip(self.steps, shares, strict=True))
        return sum(whole) / len(self.steps)

    @property
    def seeds_text(self) -> str:
        return f"{self.seeds} {'seed' if self.seeds == 1 else 'seeds'}"


@dataclass(frozen=True)
class TrimmedWorkload:
    """Seeds and steps that fit into a time budget."""

    seeds: int
    share: float  # of the steps to keep
    notes: tuple[str, ...]


def trim_workload(work: StudyWorkload, speed: TrialTiming, minutes: float) -> TrimmedWorkload:
    """Cut seeds, then steps, to fit a budget; raise ConfigError if nothing fits."""
    budget = 60 * minutes
    for seeds in range(work.seeds, 0, -1):
        kept = replace(work, seeds=seeds)
        if kept.seconds(speed) <= budget:
            notes = () if kept == work else (_format_trim_note(minutes, work, kept, 1.0, speed),)
            return TrimmedWorkload(seeds, 1.0, notes)
    kept = replace(work, seeds=1)
    rounds = math.ceil(len(work.steps) / work.jobs)
    share = (budget / rounds - speed.overhead) / speed.step / work.mean
    least = min(1.0, MIN_STEPS / min(work.steps))
    if share < least:
        needed = kept.seconds(speed, least)
        raise ConfigError(
            f"--budget {minutes:g}: one seed of {len(work.steps)} trainings with {MIN_STEPS} "
            f"steps or more takes {format_duration(needed)} here; give {math.ceil(needed / 60)} minutes "
            "or more"
        )
    return TrimmedWorkload(1, share, (_format_trim_note(minutes, work, kept, share, speed),))


def refuse_hopeless_budget(
    work: StudyWorkload, flops: Sequence[float], peak: float, minutes: float
) -> None:
    """Refuse a budget that not even a machine at its peak can keep, before anything is timed.

    Args:
        flops: of one step of each training.
        peak: FLOP/s of the machine's fastest matrix product.
    """
    share = min(1.0, MIN_STEPS / min(work.steps))
    computing = share * sum(s * f for s, f in zip(work.steps, flops, strict=True)) / peak
    needed = max(computing, math.ceil(len(work.steps) / work.jobs) * MIN_OVERHEAD)
    if needed > 60 * minutes:
        raise ConfigError(
            f"--budget {minutes:g}: one seed of {len(work.steps)} trainings with {MIN_STEPS} "
            f"steps or more takes {format_duration(needed)} at the very least; --plan says what "
            "each costs"
        )


def _format_trim_note(
    minutes: float, work: StudyWorkload, kept: StudyWorkload, share: float, speed: TrialTiming
) -> str:
    steps = "all steps" if share == 1 else f"{share:.0%} of the steps"
    return (
        f"Trimmed to a budget of {minutes:g} minutes: {kept.seeds_text} in place of {work.seeds_text}, with "
        f"{steps} of each of {len(work.steps)} trainings. {speed.step:.3g} s a step were measured "
        f"for the most expensive one; the whole would take {format_duration(work.seconds(speed))} with "
        f"{work.jobs} {'process' if work.jobs == 1 else 'processes'}."
    )


# The cost of a study before it runs, estimated as `patchwords plan` does.


MODEL_SETTING_NAMES = ("model", *(field.name for field in fields(ModelSettings)))
ASSUMED_UTILISATION = 0.4  # of the hardware's peak: the assumption of `patchwords plan`


@dataclass(frozen=True)
class TrialCost:
    """Compute of one trial with one seed."""

    name: str
    parameters: int
    macs: int  # per image
    images: int  # seen in training, the same for every seed
    steps: int
    flops: float
    device_days: float | None  # None: without hardware

    @property
    def step_flops(self) -> float:
        """FLOPs of one step."""
        return self.flops / self.steps

    @property
    def share(self) -> float:
        """FLOPs relative to training all weights."""
        return self.flops / compute_training_flops(self.macs, self.images) if self.images else 1.0


def resolve_model_config(config: FinetuneConfig, classes: int) -> ModelConfig:
    """Resolve the model that a run would train from scratch."""
    if isinstance(config, PretrainConfig):
        config, _ = resolve_head(config, None)
    overrides = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    if "image_size" in overrides:
        overrides["image_size"] = parse_image_size(overrides["image_size"])
    named = resolve_model(config.model or DEFAULT_MODEL).config
    if get_model_family(named) == "resnet":  # a ResNet has no dropout
        overrides.pop("dropout", None)
    return named.with_settings(num_classes=classes, **overrides)


def replace_encoder_by_shape(trial: Trial, scale: Scale) -> Trial:
    """Replace the encoder of a trial by its architecture: same cost, no weights needed."""
    if ENCODER not in trial.settings:
        return trial
    named = scale.encoders[trial.settings[ENCODER]]
    shape = {name: named[name] for name in MODEL_SETTING_NAMES if name in named}
    if "recipe" in named:
        shape = {"model": find_recipe(named["recipe"]).model, **shape}
    settings = {name: value for name, value in trial.settings.items() if name != ENCODER}
    return replace(trial, settings={**shape, **settings})


def build_training_workload(
    config: FinetuneConfig, images: DatasetSpec, from_weights: bool = False
) -> TrainingWorkload:
    """Build the workload of a run on a data set of known size."""
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


def build_planned_config(trial: Trial, context: StudyContext) -> FinetuneConfig:
    """Build run settings with the cost of the trial that need no encoder."""
    return build_training_config(replace_encoder_by_shape(trial, context.scale), context)


def build_trial_workload(trial: Trial, context: StudyContext) -> TrainingWorkload | None:
    """Build the workload of a trial; None if it trains nothing."""
    if trial.settings[VERB] == "none":
        return None
    images = context.scale.data if trial.shared and context.scale.data else context.scale.train_data
    config = build_planned_config(trial, context)
    pretrained = ENCODER in trial.settings or config.weights is not None
    return build_training_workload(config, images, pretrained)


def estimate_trial_cost(
    trial: Trial, context: StudyContext, hardware: Hardware | None = None
) -> TrialCost:
    """Estimate the compute of a trial and, with hardware, its device-days.

    Trials that train nothing cost 0.
    """
    training = build_trial_workload(trial, context)
    if training is None:
        return TrialCost(trial.name, 0, 0, 0, 0, 0.0, None if hardware is None else 0.0)
    shape = training.config
    flops = count_training_flops(
        build_planned_config(trial, context), count_macs(shape), training.seen, training.images
    )
    cost = TrialCost(
        trial.name,
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


# Timing on this machine: a few steps of the most expensive trial, in as many processes as will
# share the grid, since they slow each other down.


TIMING_STEPS = 40  # steps
TIMING_LOG_EVERY = 5  # steps per row of metrics.jsonl; the first row is warm-up
SCRATCH_PREFIX = ".speed-"  # in the folder of the study; deleted afterwards


def measure_trial_timing(
    trial: Trial, context: StudyContext, jobs: int, threads: int
) -> TrialTiming:
    """Time a trial in all worker processes at once; the slowest counts."""
    timings: list[TrialTiming] = []
    timed = partial(time_trial, replace_encoder_by_shape(trial, context.scale), context)
    run_workers(timed, jobs, threads, timings.append)
    return TrialTiming(
        max(timing.step for timing in timings), max(timing.overhead for timing in timings)
    )


def time_trial(trial: Trial, context: StudyContext, report: Callable[[TrialTiming], None]) -> None:
    """Train a trial for a few steps in a temporary folder, and report the timing."""
    settings = trial.settings
    brief = {
        "steps": TIMING_STEPS,
        "log_every": TIMING_LOG_EVERY,
        "eval_every": TIMING_STEPS,
        "save_every": TIMING_STEPS,
    }
    short = replace(trial, settings={**settings, **brief, "warmup_steps": 0})
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=context.folder) as scratch:
        scratch_context = replace(context, folder=Path(scratch))
        scratch_context.trial_folder(short).mkdir(parents=True)
        start = time.monotonic()
        job = train_trial(short, scratch_context)
        overhead = time.monotonic() - start - job.state.seconds
        rows = [row for row in read_metrics(job.folder.metrics) if row["kind"] == "train"]
    step = statistics.median(row["batch_seconds"] for row in rows[1:])
    looks = settings["steps"] // settings["eval_every"] if settings.get("eval_every") else 1
    images = {name: len(part) for name, part in job.data.splits.items()}
    evaluated = images.get(TEST, 0) + looks * images.get(VALIDATION, 0)
    # A run is opened twice: to train, and to evaluate on test.
    report(TrialTiming(step, 2 * overhead + FORWARD_SHARE * step * evaluated / job.plan.batch_size))
