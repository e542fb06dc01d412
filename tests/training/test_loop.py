"""The loop with a linear model and made-up batches: what it does when."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from plain_objective import PlainClassification
from torch import Tensor, nn

from patchwords.data.loader import ImageBatch
from patchwords.device import choose_device
from patchwords.errors import Diverged, Interrupted
from patchwords.training.engine.ema import EMA
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.loop import LoopCallbacks, train_loop
from patchwords.training.engine.optimizer import DecoupledSGD
from patchwords.training.engine.state import TrainState, load_final_weights, use_ema_weights
from patchwords.training.plan import TrainingPlan

PLAN = TrainingPlan(
    images=23,
    steps=11,
    batch_size=7,
    optimizer="sgd",
    lr=0.1,
    schedule="constant",
    warmup_steps=0,
    weight_decay=0.0,
    log_every=3,
    eval_every=4,
    save_every=5,
)
CLASSES = 5


def make_state() -> TrainState:
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, CLASSES))
    nn.init.normal_(model[1].weight, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(model[1].bias)
    optimizer = DecoupledSGD([{"params": list(model.parameters()), "scale": 1.0}], lr=0.1)
    return TrainState(model, optimizer, None, micro_batch=4)


def prepare(batch: int, step: int) -> ImageBatch:
    generator = torch.Generator().manual_seed(batch)
    return ImageBatch.of(torch.randn(7, 6, generator=generator), torch.arange(7) % CLASSES)


@dataclass
class Seen:
    """What the loop did, in order."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    saved: list[dict[str, Any]] = field(default_factory=list)

    def write(self, row: Any) -> None:
        self.rows.append(dict(row))

    @property
    def saves(self) -> list[int]:
        return [state["step"] for state in self.saved]


def go(
    state: TrainState,
    seen: Seen | None = None,
    plan: TrainingPlan = PLAN,
    rate: float = 0.1,
    **other: Any,
) -> Seen:
    seen = seen or Seen()
    forward = other.pop("forward", state.model)

    def save(state: TrainState) -> None:
        seen.saved.append(copy.deepcopy(state.to_dict()))

    def evaluate(model: nn.Module) -> dict[str, Any]:
        seen.evaluated.append(state.step)
        return {"split": "validation", "loss": 1.0, "accuracy": 0.5, "images": 3}

    calls = LoopCallbacks(
        prepare=prepare,
        evaluate=evaluate,
        save=save,
        record=seen,
        show_train=lambda row: seen.shown.append(row["step"]),
        show_evaluation=lambda row: None,
        stop_signal=lambda: None,
    )
    settings = StepSettings(choose_device("cpu", "fp32"), 0, lambda step: rate, clip=1e9)
    batches = range(state.step, plan.steps)
    train_loop(
        state, PlainClassification(forward), batches, settings, plan, replace(calls, **other)
    )
    return seen


def test_what_happens_at_which_step() -> None:
    seen = go(make_state())
    train_rows = [row["step"] for row in seen.rows if row["kind"] == "train"]
    assert train_rows == [3, 4, 5, 6, 8, 9, 10, 11]  # log, and before what evaluates or saves
    assert seen.shown == train_rows
    assert seen.evaluated == [4, 8, 11]  # the last one whatever the interval
    assert [row["step"] for row in seen.rows if row["kind"] == "evaluation"] == [4, 8, 11]
    assert seen.saves == [5, 10, 11]
    assert seen.rows[0]["epoch"] == pytest.approx(3 * 7 / 23, abs=1e-4)  # rounded to 4 digits


def test_few_shot_accuracy_has_steps_of_its_own() -> None:
    asked: list[int] = []
    state = make_state()

    def fewshot() -> dict[str, Any]:
        asked.append(state.step)
        return {"shots": 5, "accuracy": 0.25, "images": 3}

    seen = go(state, plan=replace(PLAN, fewshot_every=7), fewshot=fewshot)
    assert asked == [7, 11]
    rows = [(row["kind"], row["step"]) for row in seen.rows if row["step"] in {7, 11}]
    assert rows == [
        *(("train", 7), ("fewshot", 7)),
        *(("train", 11), ("evaluation", 11), ("fewshot", 11)),
    ]
    probe = {"kind": "fewshot", "step": 7, "epoch": PLAN.epoch(7)}
    assert {**probe, "shots": 5, "accuracy": 0.25, "images": 3} in seen.rows


def test_utilisation_is_the_share_of_the_time_that_the_peak_would_take() -> None:
    seen = go(make_state(), seconds_at_peak=0.25)
    for row in (row for row in seen.rows if row["kind"] == "train"):
        assert row["utilisation"] == pytest.approx(0.25 * row["images_per_second"])


def test_the_last_step_is_not_done_twice_where_the_intervals_meet_it() -> None:
    seen = go(make_state(), plan=replace(PLAN, steps=20, eval_every=10, save_every=10))
    assert (seen.evaluated, seen.saves) == ([10, 20], [10, 20])


def test_a_row_is_the_mean_since_the_row_before() -> None:
    each = go(make_state(), plan=replace(PLAN, log_every=1, eval_every=99, save_every=99)).rows
    few = go(make_state(), plan=replace(PLAN, log_every=4, eval_every=99, save_every=99)).rows
    for name in ("loss", "accuracy", "grad_norm"):
        singles = [row[name] for row in each if row["kind"] == "train"]
        means = [row[name] for row in few if row["kind"] == "train"]
        expected = [np.mean(singles[:4]), np.mean(singles[4:8]), np.mean(singles[8:])]
        assert means == pytest.approx(expected, rel=1e-6)  # float32 losses


def test_evaluation_changes_nothing() -> None:
    """However it behaves: it draws from every global stream and switches the modes."""

    def rude(model: nn.Module) -> dict[str, Any]:
        model.eval()
        torch.manual_seed(17)
        torch.rand(3)
        np.random.seed(17)
        random.seed(17)
        return {"split": "validation", "loss": 1.0, "accuracy": 0.5, "images": 3}

    often, never = make_state(), make_state()
    go(often, plan=replace(PLAN, eval_every=1), evaluate=rude)
    go(never, evaluate=None)
    for name, value in often.model.state_dict().items():
        assert torch.equal(value, never.model.state_dict()[name])


def accuracies(state: TrainState, *values: float) -> Any:
    """An evaluator that gives these in turn."""
    left: Iterator[float] = iter(values)

    def evaluate(model: nn.Module) -> dict[str, Any]:
        return {"split": "validation", "loss": 1.0, "accuracy": next(left), "images": 3}

    return evaluate


def test_early_stopping_keeps_the_best_and_stops() -> None:
    state, plan = make_state(), replace(PLAN, steps=99, eval_every=2, save_every=50)
    values = accuracies(state, 0.1, 0.5, 0.4, 0.5)  # an equal accuracy is not a better one
    seen = go(state, plan=plan, evaluate=values, patience=2)
    assert state.stopped
    assert (state.step, seen.saves) == (8, [8])
    other = make_state()
    best = go(other, plan=replace(plan, steps=4), evaluate=None).saved[-1]["model"]
    assert load_final_weights(state) == "the best on validation, of step 4"
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, best[name])


def test_early_stopping_survives_a_checkpoint() -> None:
    state, plan = make_state(), replace(PLAN, steps=99, eval_every=2, save_every=6)
    with pytest.raises(StopIteration):  # killed in the evaluation of step 8
        go(state, seen := Seen(), plan, evaluate=accuracies(state, 0.5, 0.3, 0.2), patience=4)
    fresh = make_state()
    fresh.load_dict(seen.saved[-1])
    assert (fresh.step, fresh.best["step"], fresh.best["waited"]) == (6, 2, 2)
    go(fresh, plan=plan, evaluate=accuracies(fresh, 0.1, 0.1), patience=4)
    assert (fresh.step, fresh.stopped, fresh.best["step"]) == (10, True, 2)


def test_early_stopping_keeps_the_averaged_weights_where_they_are_measured() -> None:
    state = make_state()
    state.average = EMA(state.model, 0.9)
    go(state, plan=replace(PLAN, steps=4), patience=3)
    for name, value in state.average.weights.items():
        assert torch.equal(value, state.best["weights"][name])
        assert not torch.equal(value, state.model.state_dict()[name])


def test_averaged_gives_the_weights_back_to_the_bit() -> None:
    state = make_state()
    with use_ema_weights(state):
        pass  # without an average nothing is exchanged
    state.average = EMA(state.model, 0.9)
    nn.init.normal_(state.model[1].weight)
    own = state.model[1].weight.detach().clone()
    with pytest.raises(RuntimeError), use_ema_weights(state):  # noqa: PT012
        assert torch.equal(state.model[1].weight, state.average.weights["1.weight"])
        raise RuntimeError("the evaluation fails")
    assert torch.equal(state.model[1].weight, own)


def test_final_weights() -> None:
    state = make_state()
    state.step = 1234
    assert load_final_weights(state) == "those of the last step, 1,234"
    state.average = EMA(state.model, 0.99)
    nn.init.zeros_(state.model[1].weight)
    assert load_final_weights(state) == "the running average (decay 0.99) of 1,234 steps"
    assert torch.equal(state.model[1].weight, state.average.weights["1.weight"])


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float("nan")


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_a_number_stops_the_run(what: str) -> None:
    state = make_state()

    def forward(images: Tensor) -> Tensor:
        logits = state.model(images)
        if state.step == 7:  # the eighth step
            return NoGradient.apply(logits) if what == "gradient" else logits * float("nan")
        return logits

    with pytest.raises(Diverged, match=f"the {what} is not a number any more") as caught:
        go(state, seen := Seen(), forward=forward)
    assert "between steps 7 and 8;" in str(caught.value)  # rows at 6 and, to evaluate, at 8
    assert "\n" not in str(caught.value)
    assert (seen.saves, seen.evaluated) == ([5], [4])
    assert all(value.isfinite().all() for value in seen.saved[-1]["model"].values())
    assert all(np.isfinite(row["loss"]) for row in seen.rows)


def test_infinite_weights_after_a_finite_step_are_not_saved() -> None:
    """The very last step has no loss after it that would show them."""
    state, plan = make_state(), replace(PLAN, steps=1)
    with pytest.raises(Diverged, match="the weights are not finite any more after step 1;"):
        go(state, seen := Seen(), plan, rate=3e38, forward=lambda x: 1e3 * state.model(x))
    assert seen.saves == []


@pytest.mark.parametrize("code", [130, 143])
def test_a_signal_saves_and_ends(code: int) -> None:
    state = make_state()
    with pytest.raises(Interrupted, match="stopped after step 3 of 11") as caught:
        go(state, seen := Seen(), stop_signal=lambda: code if state.step >= 3 else None)
    assert caught.value.exit_code == code
    assert seen.saves == [3]
    assert seen.rows[-1]["step"] == 3  # nothing measured is lost


def test_a_signal_at_the_last_step_comes_too_late() -> None:
    state = make_state()
    seen = go(state, stop_signal=lambda: 130 if state.step == 11 else None)
    assert seen.saves == [5, 10, 11]


def test_saved_at_least_every_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 250))  # each look at the clock is 250 s later
    monkeypatch.setattr("patchwords.training.engine.loop.time.monotonic", lambda: next(clock))
    assert go(make_state(), plan=replace(PLAN, save_every=99)).saves == [3, 6, 9, 11]


def test_a_batch_that_is_wholly_bad_passes_without_an_update() -> None:
    state, plan = make_state(), replace(PLAN, steps=3, log_every=1)

    def with_gap(batch: int, step: int) -> ImageBatch:
        return prepare(batch, step)[: 0 if step == 1 else 7]

    seen = go(state, plan=plan, prepare=with_gap)
    assert state.step == 3
    assert [row["step"] for row in seen.rows if row["kind"] == "train"] == [1, 3]
    all_bad = make_state()
    go(all_bad, plan=plan, prepare=lambda batch, step: prepare(batch, step)[:0])
    assert all_bad.step == 3
    assert torch.equal(all_bad.model[1].weight, make_state().model[1].weight)


def test_the_steps_that_are_named_count_the_empty_ones() -> None:
    state, plan = make_state(), replace(PLAN, steps=3, log_every=3, eval_every=3, save_every=3)

    def bad(batch: int, step: int) -> ImageBatch:
        whole = prepare(batch, step)
        return ImageBatch.of(whole.images * float("nan"), whole.targets)[: 0 if step == 1 else 7]

    with pytest.raises(Diverged, match="between steps 1 and 3"):
        go(state, plan=plan, prepare=bad)
