"""Recovery from lack of memory: a step that does not fit is done again in smaller parts.

With DDP the first steps are rehearsed for that: an exchange of gradients that has begun cannot be
taken back, since the other processes wait for its end. FSDP exchanges in every pass, so nothing
can be tried, and a loss over the whole batch cannot be cut.
"""

from __future__ import annotations

import torch

from patchwords.distributed import all_gather_integers
from patchwords.training.engine.gradients import (
    MetricSums,
    SharedBatch,
    StepSettings,
    accumulate_gradients,
)
from patchwords.training.engine.parallel import is_ddp
from patchwords.training.engine.state import TrainState
from patchwords.training.objectives import Objective

MEMORY_TRIAL_STEPS = 2  # the second has the optimizer's state in memory, too


def accumulate_within_memory(
    state: TrainState, objective: Objective, batch: SharedBatch, settings: StepSettings
) -> MetricSums:
    """Call `accumulate_gradients`, halving the micro-batch until it fits the memory."""
    alone = len(batch.sizes) == 1
    if objective.splittable and is_ddp(state.forward):
        _fit_micro_batch(state, objective, batch, settings)
    elif objective.splittable and alone:
        while (sums := _try_accumulate(state, objective, batch, settings)) is None:
            _halve_micro_batch(state)
        return sums
    return accumulate_gradients(state, objective, batch, settings)


def _fit_micro_batch(
    state: TrainState, objective: Objective, batch: SharedBatch, settings: StepSettings
) -> None:
    """Find parts that fit the memory of every process, before gradients are exchanged."""
    if state.rehearsed == MEMORY_TRIAL_STEPS:
        return
    while True:
        full = _try_accumulate(state, objective, batch, settings, exchange=False) is None
        if not any(process for (process,) in all_gather_integers([full])):
            break
        _halve_micro_batch(state)
    state.optimizer.zero_grad(set_to_none=True)
    state.rehearsed += 1


def _try_accumulate(
    state: TrainState,
    objective: Objective,
    batch: SharedBatch,
    settings: StepSettings,
    exchange: bool = True,
) -> MetricSums | None:
    """Call `accumulate_gradients`; None if a part does not fit the memory of the GPU."""
    try:
        return accumulate_gradients(state, objective, batch, settings, exchange)
    except torch.cuda.OutOfMemoryError:
        if state.micro_batch == 1:
            raise
        return None


def _halve_micro_batch(state: TrainState) -> None:
    """Halve it outside the error's handler, whose traceback still holds the activations."""
    state.optimizer.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    state.micro_batch = (state.micro_batch + 1) // 2
