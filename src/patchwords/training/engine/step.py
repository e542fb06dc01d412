"""One update of the weights.

Several processes each take their share of the batch; the loss is the mean over the samples of all
shares, which may differ in number where images could not be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from patchwords.data.loader import ImageBatch
from patchwords.training.engine.gradients import (
    MetricSums,
    SharedBatch,
    StepSettings,
    sum_over_processes,
)
from patchwords.training.engine.oom import accumulate_within_memory
from patchwords.training.engine.parallel import to_full_tensor
from patchwords.training.engine.state import TrainState
from patchwords.training.objectives import Objective


def train_step(
    state: TrainState, objective: Objective, share: ImageBatch, settings: StepSettings
) -> StepMetrics | None:
    """Update `state` by one batch; None, and no update, if no process has a sample."""
    batch = SharedBatch.of(share)
    if not len(batch):
        state.step += 1
        return None
    sums = accumulate_within_memory(state, objective, batch, settings)
    norm = clip_gradients(state.model, settings.clip)
    rate = settings.rate(state.step)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    objective.after_step(state.model, state.step)
    if state.average:
        state.average.update(state.model, state.step)
    state.step += 1
    return StepMetrics(sum_over_processes(sums), norm, len(batch), rate)


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step, over all processes.

    Still on the device: to read them is to wait, so the loop seldom does.
    """

    sums: MetricSums  # "loss" and the objective's metrics, each [], summed over the samples
    grad_norm: Tensor  # [] before clipping
    images: int
    rate: float


def clip_gradients(model: nn.Module, clip: float) -> Tensor:
    """Scale the gradient to a norm of at most `clip` (App. B.1: 1); -> [] its norm before."""
    learning = [p for p in model.parameters() if p.requires_grad]
    return to_full_tensor(nn.utils.clip_grad_norm_(learning, clip))
