"""The gradient of a batch, accumulated over micro-batches.

The random draws of a step (dropout, stochastic depth) are seeded from (seed, step, rank, part), so
a checkpoint needs no generator's state. As the exchange of gradients waits for all processes, a
process that has no sample for a part takes a blank one, whose loss does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from patchwords.data.loader import ImageBatch
from patchwords.device import Device
from patchwords.distributed import all_gather_integers, all_reduce_sum, get_world
from patchwords.rng import derive_seed
from patchwords.training.engine.parallel import no_gradient_sync
from patchwords.training.engine.state import TrainState
from patchwords.training.objectives import Objective

MetricSums = dict[str, Tensor]  # the loss and the metrics, each summed over the samples


@dataclass(frozen=True)
class StepSettings:
    """Settings that are the same in every step."""

    device: Device
    seed: int
    rate: Callable[[int], float]  # step -> learning rate
    clip: float
    rank: int = 0


@dataclass(frozen=True)
class SharedBatch:
    """This process's share of a batch, and the sizes of all shares."""

    share: ImageBatch
    sizes: list[int]  # samples of every process

    @classmethod
    def of(cls, share: ImageBatch) -> SharedBatch:
        return cls(share, [size for (size,) in all_gather_integers([len(share)])])

    def __len__(self) -> int:
        return sum(self.sizes)


def accumulate_gradients(
    state: TrainState,
    objective: Objective,
    batch: SharedBatch,
    settings: StepSettings,
    exchange: bool = True,
) -> MetricSums:
    """Accumulate the gradient of the mean loss of the whole batch; -> sums of this share.

    DDP exchanges gradients in the backward pass of the last micro-batch.
    """
    sums: MetricSums = {}
    mean_share = len(batch) / len(batch.sizes)  # the mean over processes is what is exchanged
    parts = -(-max(batch.sizes) // state.micro_batch)  # as many in every process
    for part in range(parts):
        torch.manual_seed(derive_seed(settings.seed, "dropout", state.step, settings.rank, part))
        chosen = batch.share[part * state.micro_batch : (part + 1) * state.micro_batch]
        last = exchange and part == parts - 1
        with nullcontext() if last else no_gradient_sync(state.forward):
            loss, metrics = compute_loss(state, objective, chosen, settings)
            (loss * (len(chosen) / mean_share)).backward()
        for name, value in {"loss": loss.detach(), **metrics}.items():
            sums[name] = sums.get(name, 0) + value * len(chosen)
    return sums


def compute_loss(
    state: TrainState, objective: Objective, batch: ImageBatch, settings: StepSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the objective's loss and metrics; of a blank sample if there is none."""
    with settings.device.autocast():
        return objective.loss(state.forward, batch if len(batch) else batch.blank(), state.step)


def sum_over_processes(sums: MetricSums) -> MetricSums:
    """Sum metrics over all processes."""
    if get_world().size == 1:
        return sums
    totals = all_reduce_sum(torch.stack([value.double() for value in sums.values()])).unbind()
    return dict(zip(sums, totals, strict=True))
