"""One update of the weights, and the state that it changes.

Sizes: B images in this process's share of the batch, C channels, H W image. The noise of a step
(dropout, stochastic depth) is seeded from (seed, step, rank, part), so a checkpoint needs no
generator's state.

Several processes each take their share of the batch, cut into parts; the loss is the mean over the
images of all shares, which may differ in number where images could not be read. As the exchange of
gradients waits for everybody, a process that has no image for a part takes a blank one, whose loss
does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from patchwords.device import Device
from patchwords.distributed import all_gather_integers, all_reduce_sum
from patchwords.rng import derive_seed
from patchwords.training.engine.parallel import (
    is_ddp,
    no_gradient_sync,
    to_full_tensor,
    to_local_tensor,
)
from patchwords.training.objectives.losses import Objective

# A running average of the weights (Polyak; the paper's 0.9999 for ImageNet in Table 2).


class EMA:
    """average <- decay * average + (1 - decay) * weights, after every step, in float32.

    In the first steps the decay is held at (1 + t) / (10 + t), so that the initial weights are
    soon forgotten (the num_updates rule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {
            name: value.detach().float().clone() for name, value in model.state_dict().items()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after update number `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        ours = [to_local_tensor(value) for value in self.weights.values()]
        theirs = [to_local_tensor(value.detach()).float() for value in model.state_dict().values()]
        torch._foreach_lerp_(ours, theirs, 1.0 - decay)


MEMORY_TRIAL_STEPS = 2  # the second has the optimizer's state in memory, too


@dataclass
class TrainState:
    """What training changes; `to_dict` is a checkpoint."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: EMA | None
    micro_batch: int  # images per part of a batch; halved when memory runs out
    step: int = 0  # updates done
    seconds: float = 0.0  # of training, interruptions left out
    skipped: dict[str, str] = field(default_factory=dict)  # training image -> why it was left out
    best: dict[str, Any] | None = None  # early stopping: step, accuracy, waited, weights
    stopped: bool = False  # early stopping has ended the run
    wrapped: nn.Module | None = None  # what a step calls for the model, where that is another
    rehearsed: int = 0  # steps of this process that were tried before gradients were exchanged

    @property
    def forward(self) -> nn.Module:
        """What a training step is to call: the model, or DDP around it."""
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


@dataclass(frozen=True)
class StepSettings:
    """What stays the same from step to step."""

    device: Device
    seed: int
    rate: Callable[[int], float]  # step -> learning rate
    clip: float
    rank: int = 0


@dataclass(frozen=True)
class StepMetrics:
    """Of one step, over all processes.

    Still on the device: to read it is to wait, so the loop seldom does.
    """

    loss: Tensor  # [] sum over the images
    correct: Tensor  # [] count, in which an image may have a share
    grad_norm: Tensor  # [] before clipping
    images: int
    rate: float


def train_step(
    state: TrainState,
    objective: Objective,
    images: Tensor,
    targets: Any,
    settings: StepSettings,
) -> StepMetrics | None:
    """Images uint8 [B, C, H, W] and what the objective wants of them -> one update of `state`.

    Where a GPU runs out of memory, the batch is cut into twice as many parts and the step is done
    again; with DDP in the first steps only, which are rehearsed for that. Where no process has an
    image, the step passes without an update: None.
    """
    counts = [number for (number,) in all_gather_integers([len(images)])]
    if not sum(counts):
        state.step += 1
        return None
    batch = (images, targets, counts)
    if is_ddp(state.forward):
        _fit_micro_batch(state, objective, batch, settings)
        loss, correct = accumulate_gradients(state, objective, batch, settings)
    elif len(counts) > 1:  # FSDP exchanges in every pass, so nothing can be tried
        loss, correct = accumulate_gradients(state, objective, batch, settings)
    else:
        while (sums := _try_accumulate(state, objective, batch, settings)) is None:
            _halve_micro_batch(state)
        loss, correct = sums
    learning = [p for p in state.model.parameters() if p.requires_grad]
    norm = to_full_tensor(
        nn.utils.clip_grad_norm_(learning, settings.clip)
    )  # App. B.1: global norm 1
    rate = settings.rate(state.step)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    if state.average:
        state.average.update(state.model, state.step)
    state.step += 1
    if len(counts) > 1:
        loss, correct = all_reduce_sum(torch.stack([loss.double(), correct.double()])).unbind()
    return StepMetrics(loss, correct, norm, sum(counts), rate)


StepBatch = tuple[Tensor, Any, list[int]]  # images, targets, images of every process


def _fit_micro_batch(
    state: TrainState, objective: Objective, batch: StepBatch, settings: StepSettings
) -> None:
    """Find parts that fit the memory of every process, before gradients are exchanged.

    An exchange that has begun cannot be taken back, as the others wait for its end.
    """
    if state.rehearsed == MEMORY_TRIAL_STEPS:
        return
    while True:
        full = _try_accumulate(state, objective, batch, settings, exchange=False) is None
        if not any(someone for (someone,) in all_gather_integers([full])):
            break
        _halve_micro_batch(state)
    state.optimizer.zero_grad(set_to_none=True)
    state.rehearsed += 1


def _try_accumulate(
    state: TrainState,
    objective: Objective,
    batch: StepBatch,
    settings: StepSettings,
    exchange: bool = True,
) -> tuple[Tensor, Tensor] | None:
    """As `accumulate_gradients`; None where a GPU's memory does not hold a part."""
    try:
        return accumulate_gradients(state, objective, batch, settings, exchange)
    except torch.cuda.OutOfMemoryError:
        if state.micro_batch == 1:
            raise
        return None


def _halve_micro_batch(state: TrainState) -> None:
    """Outside the handler of the error, whose traceback still holds the activations."""
    state.optimizer.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    state.micro_batch = (state.micro_batch + 1) // 2


def accumulate_gradients(
    state: TrainState,
    objective: Objective,
    batch: StepBatch,
    settings: StepSettings,
    exchange: bool = True,
) -> tuple[Tensor, Tensor]:
    """Accumulate the gradient of the mean loss of the whole batch.

    -> ([] summed loss, [] correct) of this process's share. DDP exchanges gradients in the
    backward pass of the last part.
    """
    images, targets, counts = batch
    loss_sum = torch.zeros((), device=images.device)
    correct = torch.zeros((), device=images.device)
    mean_share = sum(counts) / len(counts)  # since the mean over processes is what is exchanged
    parts = -(-max(counts) // state.micro_batch)  # as many in every process
    for part in range(parts):
        torch.manual_seed(derive_seed(settings.seed, "dropout", state.step, settings.rank, part))
        chosen = slice(part * state.micro_batch, (part + 1) * state.micro_batch)
        last = exchange and part == parts - 1
        with nullcontext() if last else no_gradient_sync(state.forward):
            loss, right = _compute_loss(objective, images[chosen], targets[chosen], settings)
            (loss / mean_share).backward()
        loss_sum += loss.detach()
        correct += right
    return loss_sum, correct


def _compute_loss(
    objective: Objective, images: Tensor, targets: Any, settings: StepSettings
) -> tuple[Tensor, Tensor]:
    """([] summed loss, [] correct). Of no images both are 0, but every weight has a gradient."""
    with settings.device.autocast():
        if len(images):
            losses, right = objective(images, targets)
            return losses.sum(), right
        losses, right = objective(zero_example_like(images), zero_example_like(targets))
        return 0 * losses.sum(), 0 * right


def zero_example_like(values: Any) -> Any:
    """One of what there are none of, all zeros: in a tensor [0, ...], or a table of such."""
    if isinstance(values, Tensor):
        return values.new_zeros((1, *values.shape[1:]))
    if isinstance(values, tuple):
        return tuple(zero_example_like(value) for value in values)
    tables = {name: zero_example_like(value) for name, value in vars(values).items()}
    return replace(values, **tables)
