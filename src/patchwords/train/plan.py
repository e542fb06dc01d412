"""A training plan: the settings of a run once nothing is left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from patchwords.train.config import FinetuneConfig
from patchwords.train.schedule import learning_rate

Value = TypeVar("Value")


@dataclass(frozen=True)
class Plan:
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

    def rate(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        return learning_rate(
            step,
            peak=self.lr,
            steps=self.steps,
            warmup_steps=self.warmup_steps,
            schedule=self.schedule,
        )

    def epoch(self, step: int) -> float:
        """Passes over the training images after so many steps."""
        return round(step * self.batch_size / self.images, 4)


def plan_of(config: FinetuneConfig, images: int) -> Plan:
    """The plan in a config that `recipes.fill` has filled."""
    recipe, machine = config.recipe, config.machine
    return Plan(
        images=images,
        steps=_decided(recipe.steps),
        batch_size=_decided(recipe.batch_size),
        optimizer=_decided(recipe.optimizer),
        lr=_decided(recipe.lr),
        schedule=_decided(recipe.schedule),
        warmup_steps=_decided(recipe.warmup_steps),
        weight_decay=_decided(recipe.weight_decay),
        log_every=_decided(machine.log_every),
        eval_every=_decided(machine.eval_every),
        save_every=_decided(machine.save_every),
    )


def _decided(value: Value | None) -> Value:
    assert value is not None, "fill the recipe first"
    return value
