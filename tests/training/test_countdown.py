"""The time of a run: counted down, and the schedule cut where the machine turns out slower."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_data import tick
from rich.console import Console
from tiny_run import quiet

import patchwords as pw
from patchwords.cli.train.finetune import parse_finetune
from patchwords.errors import ConfigError, Interrupted
from patchwords.training import budget, run
from patchwords.training.engine import loop
from patchwords.training.engine.countdown import (
    Countdown,
    TimeBudget,
    read_time_budget,
    write_time_budget,
)
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.plan import ScheduleCut, TrainingPlan

PLAN = TrainingPlan(1000, 100, 10, "adamw", 1.0, "cosine", 10, 0.0, 1, 10, 10)


def test_a_cut_schedule_goes_on_where_it_was_and_ends_with_the_last_step() -> None:
    assert [PLAN.rate(step) for step in range(100)] == [
        replace(PLAN, cuts=(ScheduleCut(100, 101),)).rate(step) for step in range(100)
    ]
    cut = replace(PLAN, cuts=(ScheduleCut(20, 60), ScheduleCut(40, 50)))
    assert (cut.last_step, PLAN.last_step) == (50, 100)
    assert [cut.place(step) for step in (0, 20, 21, 40, 45, 50)] == [0, 20, 22, 60, 80, 100]
    assert cut.rate(20) == PLAN.rate(20)
    assert cut.rate(40) == PLAN.rate(60)
    rates = [cut.rate(step) for step in range(10, 50)]
    assert rates == sorted(rates, reverse=True)
    assert cut.rate(50) == 0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_with(pace: float, seconds: float = 120.0) -> tuple[TrainingPlan, float]:
    """Take the steps of PLAN, expected in 90 s with 10 s after them; -> plan and the whole time."""
    clock, plan = Clock(), PLAN
    countdown = Countdown(TimeBudget(seconds, loop=90.0, end=10.0), spent=5.0, clock=clock)
    countdown.begin_loop(0)
    for step in itertools.count(1):
        clock.now += pace
        if cut := countdown.find_cut(step, plan):
            assert cut.step == step
            plan = replace(plan, cuts=(*plan.cuts, cut))
        if step == plan.last_step:
            break
    assert countdown.left == pytest.approx(seconds - 5 - clock.now)
    slower = max(1.0, pace / 0.9)
    return plan, 5 + clock.now + slower * 10


@pytest.mark.parametrize("pace", [0.1, 0.9, 1.0])
def test_a_machine_as_fast_as_measured_takes_every_step(pace: float) -> None:
    plan, seconds = run_with(pace)
    assert plan == PLAN
    assert seconds <= 120 * 1.1


@pytest.mark.parametrize("pace", [1.2, 1.5, 2.0, 3.0, 5.0])
def test_a_slower_machine_takes_fewer_steps_and_no_more_than_a_fifth_longer(pace: float) -> None:
    plan, seconds = run_with(pace)
    assert plan.last_step < 100
    assert 0.7 * 120 < seconds <= 1.2 * 120


def test_a_machine_that_is_slow_from_the_middle_on() -> None:
    clock, plan = Clock(), PLAN
    countdown = Countdown(TimeBudget(120.0, loop=90.0, end=10.0), spent=0.0, clock=clock)
    countdown.begin_loop(0)
    step = 0
    while step < plan.last_step:
        step += 1
        clock.now += 0.9 if step <= 40 else 2.7
        if cut := countdown.find_cut(step, plan):
            plan = replace(plan, cuts=(*plan.cuts, cut))
    assert plan.cuts
    assert clock.now + 10 <= 1.2 * 120


def test_the_budget_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "budget.json"
    assert read_time_budget(path) is None
    stored = TimeBudget(900.0, 700.5, 30.25, True, (ScheduleCut(5, 50), ScheduleCut(10, 40)))
    write_time_budget(path, stored)
    assert read_time_budget(path) == stored
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"budget.json is damaged, so the run cannot go on"):
        read_time_budget(path)


WORDS = (
    *("digits", "--train-images", "32", "--device", "cpu", "--precision", "fp32"),
    *("--workers", "0", "--grad-accum", "1", "--budget", "2m", "--save-every", "5"),
)


def test_a_run_that_is_slower_is_cut_and_goes_on_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tick(monkeypatch, 1.0)
    clock = Clock()
    monkeypatch.setattr(run, "Countdown", lambda time, spent: Countdown(time, 0.0, clock))
    step, stops, calls = loop.train_step, [10**9], itertools.count(1)

    def slow(*args: Any) -> Any:
        if next(calls) > stops[0]:
            raise Interrupted("stopped", 130)
        clock.now += 4.0
        return step(*args)

    monkeypatch.setattr(loop, "train_step", slow)

    def train(folder: str, *words: str) -> dict[str, torch.Tensor]:
        config = parse_finetune([*WORDS, *words, "--output", str(tmp_path / folder)])
        run.train_model(config, quiet())
        return pw.from_pretrained(tmp_path / folder).model.state_dict()

    whole = train("whole")
    stored = read_time_budget(tmp_path / "whole" / "budget.json")
    assert stored is not None
    [first, *_] = stored.cuts
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert rows[-1]["step"] == stored.cuts[-1].steps
    assert "slower than measured" in next(row["text"] for row in rows if row["kind"] == "note")
    assert clock.now <= 1.2 * 120
    stops[0], calls = first.step + 2, itertools.count(1)
    clock.now = 0.0
    with pytest.raises(Interrupted):
        train("cut")
    assert json.loads((tmp_path / "cut" / "budget.json").read_text())["cuts"]
    # The time that is left decides later cuts; the same ones are taken here.
    write_time_budget(tmp_path / "cut" / "budget.json", stored)
    stops[0], clock.now = 10**9, 0.0
    monkeypatch.setattr(budget, "measure_step_seconds", None)  # a call would fail
    again = train("cut", "--resume")
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_the_display_counts_down_to_the_budget() -> None:
    console = Console(record=True, width=100, file=quiet().console.file)
    display = Display(console)
    display.start(0, 100, budget_left=lambda: 125.0)
    row = {"kind": "train", "step": 10, "epoch": 1.0, "loss": 2.0, "images_per_second": 9.0}
    display.train({**row, "data_wait": 0.0, "batch_seconds": 50.0})
    assert "2 min 5 s of the budget left" in console.export_text()
