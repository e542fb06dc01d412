"""The training loop: step, log, evaluate, save, stop. It knows neither files nor data sets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from patchwords.data.loader import ImageBatch
from patchwords.device import peak_memory
from patchwords.distributed import all_gather_integers
from patchwords.errors import DataError, Diverged, Interrupted, StorageError
from patchwords.training.engine.countdown import Countdown
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.parallel import gather_full_weights, to_local_tensor
from patchwords.training.engine.state import TrainState, use_ema_weights
from patchwords.training.engine.step import StepMetrics, train_step
from patchwords.training.objectives import Objective
from patchwords.training.plan import TrainingPlan

SECONDS_BETWEEN_SAVES = 600.0  # at least this often, however far apart `save_every` is


class MetricsWriter(Protocol):
    """Writer of the rows of metrics.jsonl."""

    def write(self, row: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class LoopCallbacks:
    """Functions that the loop calls."""

    prepare: Callable[[Any, int], ImageBatch]  # (batch, step) -> the batch as the step takes it
    evaluate: Callable[[nn.Module], dict[str, Any]] | None  # -> metrics by name, images, split
    save: Callable[[TrainState], None]
    record: MetricsWriter
    show_train: Callable[[Mapping[str, Any]], None]
    show_evaluation: Callable[[Mapping[str, Any]], None]
    stop_signal: Callable[[], int | None]  # exit code, once the user or the system wants an end
    patience: int | None = None  # early stopping: evaluations without a better primary metric
    fewshot: Callable[[], dict[str, Any]] | None = None  # -> metrics of the few-shot probe
    seconds_at_peak: float | None = None  # of an image at the device's peak; None: not known
    countdown: Countdown | None = None  # of a run with a time
    note_cut: Callable[[TrainingPlan], None] = lambda plan: None  # the schedule was cut


class TrainMeter:
    """Sums over the steps since the last row; nothing is read from the device before `row`."""

    def __init__(self, step: int, device: torch.device, seconds_at_peak: float | None) -> None:
        self.device, self.seconds_at_peak = device, seconds_at_peak
        self.reset(step)

    def reset(self, step: int) -> None:
        self.after = step
        self.measured: list[StepMetrics] = []
        self.started = time.perf_counter()
        self.waited = 0.0

    def row(self, state: TrainState, plan: TrainingPlan) -> dict[str, Any]:
        """A "train" row; raises Diverged where a loss or a gradient is not a number."""
        seconds = time.perf_counter() - self.started
        count = sum(m.images for m in self.measured)
        means = {
            name: sum(float(m.sums[name]) for m in self.measured) / count
            for name in self.measured[0].sums
        }
        loss = means["loss"]
        norm = sum(float(m.grad_norm) for m in self.measured) / len(self.measured)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = "loss" if not math.isfinite(loss) else "gradient"
            raise Diverged(
                f"the {what} is not a number any more, between steps {self.after + 1} and "
                f"{state.step}; the last finite checkpoint is kept; try a lower --lr, more "
                "--warmup-steps, or --precision fp32"
            )
        row = {
            "kind": "train",
            "step": state.step,
            "epoch": plan.epoch(state.step),
            **means,
            "lr": self.measured[-1].rate,
            "grad_norm": norm,
            "images_per_second": count / max(seconds, 1e-9),
            "data_wait": self.waited / max(seconds, 1e-9),
            "batch_seconds": seconds / len(self.measured),
            "seconds": state.seconds,
            "memory": peak_memory(self.device),
        }
        if self.seconds_at_peak is not None:
            row["utilisation"] = count * self.seconds_at_peak / max(seconds, 1e-9)
        self.reset(state.step)
        return row


def train_loop(
    state: TrainState,
    objective: Objective,
    batches: Iterable[Any],
    settings: StepSettings,
    plan: TrainingPlan,
    calls: LoopCallbacks,
) -> None:
    """Take steps until the last one, early stopping, or a signal.

    Raises Diverged and Interrupted; before the latter, and before what the batches raise where
    the data cannot be read any further, a checkpoint is written.
    """
    if calls.countdown is not None:
        calls.countdown.begin_loop(state.step)
    meter = TrainMeter(state.step, settings.device.torch_device, calls.seconds_at_peak)
    last_save = time.monotonic()
    for batch, waited in time_batches(save_on_data_error(batches, state, calls)):
        clock = time.perf_counter()
        state.model.train()
        measured = train_step(state, objective, calls.prepare(batch, state.step), settings)
        if measured is not None:
            meter.measured.append(measured)
        meter.waited += waited
        state.seconds += time.perf_counter() - clock + waited
        plan, settings = cut_to_budget(state, plan, settings, calls)
        ends = state.step == plan.last_step
        late = time.monotonic() - last_save > SECONDS_BETWEEN_SAVES
        stop, late = agree_on_stop(calls.stop_signal(), late)
        evaluates = calls.evaluate is not None and (state.step % plan.eval_every == 0 or ends)
        probes = plan.fewshot_every is not None and (state.step % plan.fewshot_every == 0 or ends)
        saves = state.step % plan.save_every == 0 or ends or late or stop is not None
        logs = state.step % plan.log_every == 0 or evaluates or probes or saves
        if meter.measured and logs:
            row = meter.row(state, plan)  # raises Diverged: before anything is saved
            calls.record.write(row)
            calls.show_train(row)
        if evaluates:
            run_evaluation(state, objective, plan, calls)
            meter.reset(state.step)
        if probes:
            run_fewshot_probe(state, plan, calls)
            meter.reset(state.step)
        if saves or state.stopped:
            check_weights_finite(state)
            calls.save(state)
            last_save = time.monotonic()
            meter.reset(state.step)
        if state.stopped or ends:
            return
        if stop is not None:
            raise Interrupted(f"stopped after step {state.step:,} of {plan.last_step:,}", stop)


def cut_to_budget(
    state: TrainState, plan: TrainingPlan, settings: StepSettings, calls: LoopCallbacks
) -> tuple[TrainingPlan, StepSettings]:
    """Cut the schedule where the run would overrun its time; -> how to go on."""
    cut = None if calls.countdown is None else calls.countdown.find_cut(state.step, plan)
    if cut is None:
        return plan, settings
    plan = replace(plan, cuts=(*plan.cuts, cut))
    calls.note_cut(plan)
    return plan, replace(settings, rate=plan.rate)


def agree_on_stop(stop: int | None, late: bool) -> tuple[int | None, bool]:
    """Agree on a stop and on a save over all processes, so that they stop at the same step."""
    stops, lates = zip(*all_gather_integers([stop or 0, late]), strict=True)
    return max(stops) or None, bool(lates[0])


def check_weights_finite(state: TrainState) -> None:
    """Raise Diverged if the weights have left the range of float32."""
    norms = torch._foreach_norm(
        [to_local_tensor(value.detach()) for value in state.model.parameters()]
    )
    finite = bool(torch.stack(norms).isfinite().all())
    if not all(process for (process,) in all_gather_integers([finite])):
        raise Diverged(
            f"the weights are not finite any more after step {state.step}; the last finite "
            "checkpoint is kept; try a lower --lr or more --warmup-steps"
        )


def save_on_data_error(
    batches: Iterable[Any], state: TrainState, calls: LoopCallbacks
) -> Iterator[Any]:
    """Iterate over the batches; save a checkpoint if the next one cannot be read."""
    try:
        yield from batches
    except (DataError, StorageError):
        check_weights_finite(state)
        calls.save(state)
        raise


def time_batches(batches: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """Yield each batch and the seconds spent waiting for it."""
    iterator = iter(batches)
    while True:
        clock = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield batch, time.perf_counter() - clock


def run_evaluation(
    state: TrainState, objective: Objective, plan: TrainingPlan, calls: LoopCallbacks
) -> None:
    """Measure the weights that would be kept now; note the best where early stopping wants it."""
    assert calls.evaluate is not None
    with use_ema_weights(state):
        with gather_full_weights(state.model):
            result = calls.evaluate(state.model)
        row = {
            "kind": "evaluation",
            "step": state.step,
            "epoch": plan.epoch(state.step),
            **result,
        }
        calls.record.write(row)
        calls.show_evaluation(row)
        if calls.patience is not None:
            note_best(state, objective, result, calls.patience)


def note_best(
    state: TrainState, objective: Objective, result: Mapping[str, Any], patience: int
) -> None:
    """Early stopping: keep the weights if they are the best so far; stop after the patience."""
    metric = objective.primary_metric
    if state.best is None or objective.is_better(result[metric], state.best[metric]):
        weights = {name: value.clone() for name, value in state.model.state_dict().items()}
        best = {"step": state.step, metric: result[metric], "waited": 0, "weights": weights}
        state.best = best
    else:
        state.best["waited"] += 1
        state.stopped = state.best["waited"] >= patience


def run_fewshot_probe(state: TrainState, plan: TrainingPlan, calls: LoopCallbacks) -> None:
    """Probe the weights that would be kept now by the few-shot metric."""
    assert calls.fewshot is not None
    with use_ema_weights(state), gather_full_weights(state.model):
        result = calls.fewshot()
    row = {"kind": "fewshot", "step": state.step, "epoch": plan.epoch(state.step), **result}
    calls.record.write(row)
    calls.show_evaluation(row)
