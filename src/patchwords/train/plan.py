"""A training plan: the settings of a run once nothing is left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from patchwords.train.config import FinetuneConfig
from patchwords.train.schedule import STAIRCASE_DROPS, learning_rate

Value = TypeVar("Value")


@dataclass(frozen=True)
class TrainingPlan:
    """The numbers that the step and the loop go by; fields as in RecipeSettings."""

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

    def rate(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        return learning_rate(
            step,
            peak=self.lr,
            steps=self.steps,
            warmup_steps=self.warmup_steps,
            schedule=self.schedule,
            drops=self.drops,
        )

    def epoch(self, step: int) -> float:
        """Passes over the training images after so many steps."""
        return round(step * self.batch_size / self.images, 4)


def build_training_plan(config: FinetuneConfig, images: int) -> TrainingPlan:
    """The plan in a config that `recipes.fill` has filled."""
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
    """A setting that a person may leave open, but a run may not."""
    assert value is not None, "fill the recipe first"
    return value
