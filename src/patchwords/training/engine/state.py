"""The state of a training: built, saved, restored, and the weights that it ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from patchwords.data.dataset import DatasetSplits
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.errors import ConfigError
from patchwords.planning.memory import choose_micro_batch
from patchwords.training.config import FinetuneConfig, parse_lora_rank
from patchwords.training.engine.ema import EMA
from patchwords.training.engine.lora import add_lora
from patchwords.training.engine.optimizer import build_optimizer, freeze_layers
from patchwords.training.engine.parallel import (
    checkpoint_activations,
    compile_layers,
    shard_model,
    wrap_ddp,
)
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import Objective
from patchwords.training.plan import TrainingPlan


@dataclass
class TrainState:
    """State that training changes; `to_dict` is a checkpoint."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: EMA | None
    micro_batch: int  # images per micro-batch; halved when memory runs out
    step: int = 0  # updates done
    seconds: float = 0.0  # of training, interruptions left out
    skipped: dict[str, str] = field(default_factory=dict)  # training image -> why it was left out
    best: dict[str, Any] | None = None  # early stopping: step, primary metric, waited, weights
    stopped: bool = False  # early stopping has ended the run
    wrapped: nn.Module | None = None  # what a step calls for the model, where that is another
    rehearsed: int = 0  # steps of this process that were tried before gradients were exchanged

    @property
    def forward(self) -> nn.Module:
        """The module that a training step calls: the model, DDP around it, or layers that learn."""
        return self.model if self.wrapped is None else self.wrapped

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.weights if self.average else None,
            "micro_batch": self.micro_batch,
            "step": self.step,
            "seconds": self.seconds,
            "skipped": self.skipped,
            "best": self.best,
            "stopped": self.stopped,
        }

    def load_dict(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.average:
            for name, value in self.average.weights.items():
                value.copy_(saved["average"][name])
        for name in ("micro_batch", "step", "seconds", "skipped", "best", "stopped"):
            setattr(self, name, saved[name])


def build_train_state(
    config: FinetuneConfig,
    plan: TrainingPlan,
    start: InitialModel,
    data: DatasetSplits,
    objective: Objective,
    device: Device,
) -> TrainState:
    """Build the learner on its device, with an optimizer for the weights that learn."""
    shape, recipe, machine, here = start.model.config, config.recipe, config.machine, get_world()
    start.model.to(device.torch_device)
    model = objective.build(start, data)
    rank = parse_lora_rank(recipe.train)
    if rank is not None:
        add_lora(model, rank, config.seed)
    freeze_layers(model, recipe.train, shape)
    if machine.checkpoint_activations:
        checkpoint_activations(model)
    if machine.compile == "yes":
        compile_layers(model)
    sharded = machine.parallel == "fsdp" and here.size > 1
    if sharded:
        shard_model(model, device, here)
    share, parts = plan.batch_size // here.size, machine.grad_accum
    if objective.splittable:
        micro_batch = choose_micro_batch(
            shape, share, device, parts, machine.checkpoint_activations
        )
    elif parts in {"auto", 1}:
        micro_batch = share
    else:
        raise ConfigError(
            f"--grad-accum {parts} cuts a batch into parts, and the loss of "
            f"{type(objective).__name__} is over the whole batch; leave it out"
        )
    return TrainState(
        model=model,
        optimizer=build_optimizer(
            model,
            plan,
            shape,
            recipe.layer_decay,
            objective.weight_decay_rules,
            objective.adam_betas,
        ),
        average=EMA(model, recipe.ema) if recipe.ema else None,
        micro_batch=micro_batch,
        wrapped=None if sharded else wrap_ddp(model, here),
    )


@contextmanager
def use_ema_weights(state: TrainState) -> Iterator[None]:
    """Inside, the model holds the averaged weights, where there are any."""
    if state.average is None:
        yield
        return
    current = {name: value.clone() for name, value in state.model.state_dict().items()}
    state.model.load_state_dict(state.average.weights)
    try:
        yield
    finally:
        state.model.load_state_dict(current)


@torch.no_grad()
def load_final_weights(state: TrainState) -> str:
    """Put the weights that the run ends with into the model; -> which they are, for the user."""
    if state.best is not None:
        state.model.load_state_dict(state.best["weights"])
        return f"the best on validation, of step {state.best['step']:,}"
    if state.average is not None:
        state.model.load_state_dict(state.average.weights)
        return f"the running average (decay {state.average.decay:g}) of {state.step:,} steps"
    return f"those of the last step, {state.step:,}"
