"""A training plan: schedule and settings of a run once every setting is resolved."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TypeVar

from patchwords.device import Device, PrecisionName
from patchwords.training.config import CompileMode, FinetuneConfig

# Learning rates are pure functions of the step (Appendix B; vit_jax/utils.py).
# Shares of the steps after which the staircase falls: bit_hyperrule.py, from 20,000 images on.
STAIRCASE_DROPS = (0.3, 0.6, 0.9)
LINEAR_END = 1e-5  # last rate of the linear schedule: vit_jax/utils.py


def learning_rate(
    step: float,
    *,
    peak: float,
    steps: int,
    warmup_steps: int,
    schedule: str = "cosine",
    drops: tuple[float, ...] = STAIRCASE_DROPS,
) -> float:
    """Compute the learning rate of update number `step`, counted from 0.

    Warm-up rises linearly from 0 and reaches `peak` at step `warmup_steps`; then "cosine" falls to
    0 at `steps`, "linear" to 1e-5 (or `peak`, if that is less), "constant" stays, and "staircase"
    falls to a tenth after each of `drops`, shares of the steps (bit_hyperrule.py).

    >>> learning_rate(0, peak=0.1, steps=100, warmup_steps=10)
    0.0
    >>> learning_rate(10, peak=0.1, steps=100, warmup_steps=10)
    0.1
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule == "linear":
        end = min(LINEAR_END, peak)
        return end + (peak - end) * (1.0 - progress)
    if schedule == "staircase":
        return peak * 0.1 ** sum(step > round(drop * steps) for drop in drops)
    assert schedule == "constant", schedule
    return peak


Value = TypeVar("Value")


@dataclass(frozen=True)
class ScheduleCut:
    """A schedule cut short, as the time did not suffice."""

    step: int  # after this update
    steps: int  # in all, from then on


@dataclass(frozen=True)
class TrainingPlan:
    """The resolved numbers of a training; fields as in RecipeSettings."""

    images: int  # in the training split
    steps: int
    batch_size: int
    optimizer: str
    lr: float
    schedule: str
    warmup_steps: int
    weight_decay: float
    log_every: int
    eval_every: int
    save_every: int
    fewshot_every: int | None = None  # None: never
    drops: tuple[float, ...] = STAIRCASE_DROPS
    cuts: tuple[ScheduleCut, ...] = ()

    @property
    def last_step(self) -> int:
        """Number of updates: all steps, or fewer where the schedule was cut."""
        return self.cuts[-1].steps if self.cuts else self.steps

    def place(self, step: int) -> float:
        """Return the step of the whole schedule that an update stands for.

        After a cut the rest of the schedule passes faster, so that it ends with the last update.
        """
        start, place, pace = 0, 0.0, 1.0
        for cut in self.cuts:
            if step < cut.step:
                break
            place, start = place + (cut.step - start) * pace, cut.step
            pace = (self.steps - place) / (cut.steps - start)
        return place + (step - start) * pace

    def rate(self, step: int) -> float:
        """Compute the learning rate of update number `step`, counted from 0."""
        return learning_rate(
            self.place(step),
            peak=self.lr,
            steps=self.steps,
            warmup_steps=self.warmup_steps,
            schedule=self.schedule,
            drops=self.drops,
        )

    def epoch(self, step: int) -> float:
        """Compute the passes over the training images after a number of steps."""
        return round(step * self.batch_size / self.images, 4)


def build_training_plan(config: FinetuneConfig, images: int) -> TrainingPlan:
    """Build the plan of a config whose recipe is filled in."""
    recipe, machine = config.recipe, config.machine
    return TrainingPlan(
        images=images,
        steps=require_setting(recipe.steps),
        batch_size=require_setting(recipe.batch_size),
        optimizer=require_setting(recipe.optimizer),
        lr=require_setting(recipe.lr),
        schedule=require_setting(recipe.schedule),
        warmup_steps=require_setting(recipe.warmup_steps),
        weight_decay=require_setting(recipe.weight_decay),
        log_every=require_setting(machine.log_every),
        eval_every=require_setting(machine.eval_every),
        save_every=require_setting(machine.save_every),
        fewshot_every=machine.fewshot_every,
        drops=recipe.drops or STAIRCASE_DROPS,
    )


def require_setting(value: Value | None) -> Value:
    """Return a setting that the user may leave open, but a run may not."""
    assert value is not None, "fill the recipe first"
    return value


@dataclass(frozen=True)
class ResolvedSetting:
    """A setting with its reason: one line of the table shown before the first step."""

    name: str
    value: object
    why: str


# Compiling takes about a minute; fewer steps do not make up for it.
MIN_STEPS_TO_COMPILE = 2_000


def resolve_machine_settings(
    config: FinetuneConfig, device: Device, steps: int
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """Resolve "auto" for device, precision and compile on this machine."""
    compiling, why = resolve_compile_mode(config.machine.compile, device, steps)
    choices = [
        ResolvedSetting(
            "device", device.type, "asked for" if config.machine.device != "auto" else "found"
        ),
        ResolvedSetting(
            "precision", device.precision, explain_precision(config.machine.precision, device)
        ),
        ResolvedSetting("compile", compiling, why),
    ]
    return replace(config, machine=replace(config.machine, compile=compiling)), choices


def explain_precision(requested: PrecisionName, device: Device) -> str:
    """Give the reason for the precision of matrix products."""
    if requested != "auto":
        return "asked for"
    processor = "processor" if device.type == "cpu" else "GPU"
    if device.bf16:
        return f"of matrix products: this {processor} multiplies bfloat16 faster"
    return f"of matrix products: this {processor} has no fast bfloat16"


def resolve_compile_mode(
    requested: CompileMode, device: Device, steps: int
) -> tuple[CompileMode, str]:
    """Decide whether to compile, and why.

    The compiler fuses the operations between the matrix products, on a CPU a small share.
    """
    if requested != "auto":
        return requested, "asked for"
    if device.type == "cpu":
        return "no", "on a CPU it gains a tenth at most, and takes up to a minute first"
    if steps < MIN_STEPS_TO_COMPILE:
        return "no", f"{steps:,} steps are too few to make up for the minute that it takes first"
    if find_spec("triton") is None:
        return "no", "triton, which writes the kernels, is not installed"
    return "yes", "the layers, which takes a minute at the first step"
