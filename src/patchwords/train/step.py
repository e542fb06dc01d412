"""One update of the weights, and the state that it changes.

Sizes: B images in the batch, C channels, H W image. The noise of a step (dropout, stochastic
depth) is seeded from (seed, step, rank, part), so a checkpoint needs no generator's state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from patchwords.device import Device
from patchwords.noise import noise
from patchwords.train.average import Average
from patchwords.train.task import Objective


@dataclass
class State:
    """What training changes; `to_dict` is a checkpoint."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None
    micro_batch: int  # images per part of a batch; halved when memory runs out
    step: int = 0  # updates done
    seconds: float = 0.0  # of training, interruptions left out
    skipped: dict[str, str] = field(default_factory=dict)  # training image -> why it was left out
    best: dict[str, Any] | None = None  # early stopping: step, accuracy, waited, weights
    stopped: bool = False  # early stopping has ended the run

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


@dataclass(frozen=True)
class StepSettings:
    """What stays the same from step to step."""

    device: Device
    seed: int
    rate: Callable[[int], float]  # step -> learning rate
    clip: float
    rank: int = 0


@dataclass(frozen=True)
class Measured:
    """Of one step, still on the device: to read it is to wait, so the loop seldom does."""

    loss: Tensor  # [] sum over the images
    correct: Tensor  # [] count, in which an image may have a share
    grad_norm: Tensor  # [] before clipping
    images: int
    rate: float


def train_step(
    state: State,
    objective: Objective,
    images: Tensor,
    targets: Any,
    settings: StepSettings,
) -> Measured:
    """Images uint8 [B, C, H, W] and what the objective wants of them -> one update of `state`.

    Where a GPU runs out of memory, the batch is cut into twice as many parts and the step is done
    again.
    """
    while True:
        try:
            loss, correct = _gradients(state, objective, images, targets, settings)
            break
        except torch.cuda.OutOfMemoryError:
            if state.micro_batch == 1:
                raise
        # Outside the handler: inside, the traceback still holds the activations.
        state.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        state.micro_batch = (state.micro_batch + 1) // 2
    learning = [p for p in state.model.parameters() if p.requires_grad]
    norm = nn.utils.clip_grad_norm_(learning, settings.clip)  # App. B.1: global norm 1
    rate = settings.rate(state.step)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    if state.average:
        state.average.update(state.model, state.step)
    state.step += 1
    return Measured(loss, correct, norm, len(images), rate)


def _gradients(
    state: State, objective: Objective, images: Tensor, targets: Any, settings: StepSettings
) -> tuple[Tensor, Tensor]:
    """Accumulate the gradient of the batch's mean loss; -> ([] summed loss, [] correct)."""
    loss_sum = torch.zeros((), device=images.device)
    correct = torch.zeros((), device=images.device)
    for part, start in enumerate(range(0, len(images), state.micro_batch)):
        torch.manual_seed(noise(settings.seed, "dropout", state.step, settings.rank, part))
        chosen = slice(start, start + state.micro_batch)
        with settings.device.autocast():
            losses, right = objective(images[chosen], targets[chosen])
        loss = losses.sum()
        (loss / len(images)).backward()
        loss_sum += loss.detach()
        correct += right
    return loss_sum, correct
