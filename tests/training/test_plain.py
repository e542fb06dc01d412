"""The plain command: what the data decide, the budget, and the plan without a run."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_data import CPU, GPU, make_data, stand_still, tick
from rich.console import Console
from tiny_run import quiet

import patchwords as pw
from patchwords.cli import main
from patchwords.cli.train.finetune import FinetuneCommand, parse_finetune
from patchwords.data.dataset import TRAIN, DatasetSplits
from patchwords.device import Device
from patchwords.errors import ConfigError, Interrupted
from patchwords.training import budget
from patchwords.training.budget import BudgetWorkload, parse_budget
from patchwords.training.config import FinetuneConfig, read_config_yaml
from patchwords.training.model_setup import choose_model_family, choose_plain_settings
from patchwords.training.recipes import fill_recipe_settings
from patchwords.training.recipes.plain import PLAIN
from patchwords.training.run import explain_training, resolve_data_and_model, train_model


def plan(data: DatasetSplits, *words: str, device: Device = CPU) -> FinetuneConfig:
    """The settings of `patchwords finetune photos WORDS` without a measurement."""
    config = parse_finetune(["photos", *words])
    [first, *_], _ = choose_plain_settings(config, data, device)
    filled, _ = fill_recipe_settings(
        first,
        images=len(data.splits[TRAIN]),
        from_weights=False,
        model=first.model or "ViT-B/16",
        family=choose_model_family(first, None),
    )
    return filled


def size_of(config: FinetuneConfig) -> tuple[str | None, int]:
    assert config.model_settings.image_size
    return config.model, config.model_settings.image_size[0]


def epochs_of(config: FinetuneConfig, images: int) -> float:
    assert config.recipe.steps
    assert config.recipe.batch_size
    return config.recipe.steps * config.recipe.batch_size / images


def test_a_class_with_five_images() -> None:
    config = plan(make_data([5, 60, 60]))
    assert size_of(config) == ("CNN-8x2", 64)
    assert config.recipe.batch_size == 16  # 8 steps in an epoch
    assert epochs_of(config, 125) == pytest.approx(100, rel=0.1)
    assert config.recipe.balance == "none"


def test_two_hundred_classes() -> None:
    config = plan(make_data([12] * 200))
    assert size_of(config) == ("CNN-8x2", 64)
    assert (config.recipe.batch_size, config.recipe.balance) == (64, "none")
    assert config.recipe.label_smoothing == 0.1


def test_ninety_percent_in_one_class_turns_balance_on_and_says_so() -> None:
    data = make_data([900, 60, 40])
    config = parse_finetune(["photos"])
    [chosen, *_], choices = choose_plain_settings(config, data, CPU)
    assert chosen.recipe.balance == "loss"
    why = {choice.name: choice.why for choice in choices}
    assert why["balance"] == "one class has 90% of the images: the others weigh more in the loss"
    assert plan(data, "--balance", "none").recipe.balance == "none"
    assert plan(data, "--balance", "sample").recipe.balance == "sample"


def test_a_hundred_thousand_images() -> None:
    data = make_data([50_000, 50_000])
    config = plan(data)
    assert size_of(config) == ("CNN-8x2", 64)
    assert config.recipe.batch_size == 128
    assert epochs_of(config, 100_000) == pytest.approx(30, rel=0.01)
    assert size_of(plan(data, device=GPU)) == ("C+ViT-S/16", 128)


@pytest.mark.parametrize(
    ("size", "mode", "expected"),
    [
        ((32, 32), "RGB", ("CNN-8x2", 64)),
        ((28, 28), "L", ("CNN-8x2", 64)),
        ((4000, 3000), "1", ("CNN-8x2", 64)),  # 12 megapixels; only headers are read
        ((120, 90), "L", ("CNN-8x2", 64)),
    ],
)
def test_small_large_and_grey_images(
    size: tuple[int, int], mode: str, expected: tuple[str, int]
) -> None:
    assert size_of(plan(make_data([40, 40], size, mode))) == expected


def test_from_a_million_images_on_the_paper_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchwords.training.model_setup.LARGE_DATA_IMAGES", 80)
    config = plan(make_data([40, 40]))
    assert (config.model, config.recipe.recipe, config.recipe.weight_decay) == (None, None, 0.3)
    assert config.augment.crop_area == (0.05, 1.0)
    assert config.budget is None


def test_what_the_user_says_wins() -> None:
    words = ("--lr", "1e-3", "--epochs", "2", "--label-smoothing", "0", "--crop-area", "0.05", "1")
    config = plan(make_data([40, 40]), *words, "--batch-size", "10")
    assert (config.recipe.lr, config.recipe.steps, config.recipe.label_smoothing) == (1e-3, 16, 0)
    assert config.augment.crop_area == (0.05, 1.0)
    assert config.budget is None


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "ViT-Ti/16"),
        ("--image-size", "32"),
        ("--width", "96"),
        ("--weights", "somewhere"),
    ],
)
def test_a_named_model_is_trained_as_before(words: tuple[str, ...]) -> None:
    config = parse_finetune(["photos", *words])
    assert (config.recipe.recipe, config.recipe.label_smoothing) == (None, 0.0)
    [chosen], choices = choose_plain_settings(config, make_data([40, 40]), CPU)
    assert (chosen, choices) == (config, [])


def test_no_weights_are_the_same_as_none_named() -> None:
    config = parse_finetune(["photos", "--weights", "none"])
    assert config.recipe.recipe == PLAIN
    assert replace(config, weights=None) == parse_finetune(["photos"])


# The budget


@pytest.mark.parametrize("text", ["", "15", "m", "15 minutes", "-5m", "0m", "1h,5m"])
def test_a_budget_is_a_time_with_a_unit(text: str) -> None:
    with pytest.raises(ConfigError, match="give a time with its unit, as 15m, 90s or 1h30m"):
        parse_budget(text)


def test_the_most_whole_epochs_that_fit() -> None:
    work = BudgetWorkload(step=0.5, steps_per_epoch=10, validation=2.0, test=4.0, max_steps=100)
    assert work.seconds(30) == budget.REPORT_SECONDS + 0.5 * (30 + 3 * 2 + 4)
    assert work.fit(work.seconds(30)) == 30
    assert work.fit(work.seconds(30) - 0.01) == 20
    assert work.fit(work.seconds(10) - 0.01) == 0
    assert work.fit(1e9) == 100


WORDS = ("digits", "--train-images", "64", "--device", "cpu", "--precision", "fp32")
QUIET = ("--workers", "0", "--grad-accum", "1")


def test_a_clock_decides_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_finetune([*WORDS, *QUIET, "--budget", "2m"])
    found = {}
    for seconds in (0.5, 2.0):
        tick(monkeypatch, seconds)
        decided, *_, choices = resolve_data_and_model(config, CPU)
        found[seconds] = decided.recipe.steps
        assert decided.budget is None
        why = {choice.name: choice.why for choice in choices}
        assert "2m" in why["steps"] or "all that the recipe has" in why["steps"]
    assert found[0.5] > found[2.0] > 0
    assert found[2.0] % 4 == 0  # whole epochs of four batches


def test_a_slow_machine_takes_the_smaller_model(monkeypatch: pytest.MonkeyPatch) -> None:
    photos = make_data([40, 40])
    candidates, _ = choose_plain_settings(parse_finetune(["photos"]), photos, CPU)
    assert [size_of(candidate)[1] for candidate in candidates] == [64, 64, 32]
    seconds = iter([60.0, 60.0, 1.0])
    works = (BudgetWorkload(next(seconds), 5, 1.0, 1.0, 500) for _ in candidates)
    monkeypatch.setattr(budget, "measure_workload", lambda *_: next(works))
    chosen, why, _ = budget.fit_to_budget(candidates, lambda c: c, photos, CPU)  # type: ignore[arg-type, return-value]
    assert size_of(chosen) == ("CNN-4x1", 32)
    assert "all that the recipe has" in why


def test_too_small_a_budget_says_the_least(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tick(monkeypatch, 5.0)
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", *WORDS, *QUIET, "--budget", "20s"]) == 2
    error = capsys.readouterr().err
    assert "--budget 20s: one epoch of 64 images with the evaluation takes" in error
    assert "give 1m or more" in error
    assert error.count("\n") == 1
    assert not os.listdir()


@pytest.mark.parametrize("flag", ["--steps", "--epochs", "--examples"])
def test_a_budget_and_a_length_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", "digits", "--budget", "5m", flag, "3"]) == 2
    error = capsys.readouterr().err
    assert f"{flag} 3 and --budget 5m both say how long to train; give one of them" in error


def test_a_budgeted_run_goes_on_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The steps are stored: the resumed run measures nothing."""
    tick(monkeypatch, 2.0)
    stand_still(monkeypatch)
    more = ("--budget", "40s", "--eval-every", "3", "--save-every", "3")

    def train(folder: str, *words: str) -> dict[str, torch.Tensor]:
        config = parse_finetune([*WORDS, *QUIET, *more, *words, "--output", str(tmp_path / folder)])
        train_model(config, quiet())
        return pw.from_pretrained(tmp_path / folder).model.state_dict()

    whole = train("whole")
    stored = read_config_yaml(tmp_path / "whole" / "config.yaml")
    assert (stored["budget"], stored["model"], stored["image_size"]) == (
        None,
        "CNN-4x1",
        [32, 32],
    )
    assert stored["steps"] > 3
    with monkeypatch.context() as patch:
        from patchwords.training.engine import loop

        step, calls = loop.train_step, itertools.count()

        def stopped(*args: Any) -> Any:
            if next(calls) == 3:
                raise Interrupted("stopped", 130)
            return step(*args)

        patch.setattr(loop, "train_step", stopped)
        with pytest.raises(Interrupted):
            train("cut")
    monkeypatch.setattr(budget, "measure_step_seconds", None)  # a call would fail
    again = train("cut", "--resume")
    assert all(torch.equal(again[name], value) for name, value in whole.items())


# The plan without a run


def test_explain_shows_the_plan_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, *QUIET, "--epochs", "2", "--explain"]
    assert main(["finetune", *words]) == 0
    text = capsys.readouterr().out
    assert "CNN-8x2" in text
    assert "2 epochs, asked for" in text
    settings = pw.finetune("digits", train_images=64, epochs=2, workers=0, explain=True)
    assert settings["model"]["value"] == "CNN-8x2"
    assert settings["recipe"]["value"] == PLAIN
    assert not os.listdir()


def test_pretraining_is_explained_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shape = {"model": "ViT-Ti/4", "image_size": 8, "depth": 1, "width": 12, "heads": 2}
    settings = pw.pretrain("digits", train_images=64, workers=0, explain=True, **shape)
    assert settings["image_size"]["value"] == "8x8"
    assert not os.listdir()


def test_the_plan_is_that_of_the_run() -> None:
    config = FinetuneCommand(data="digits")
    rows = explain_training(
        parse_finetune([*WORDS, *QUIET, "--epochs", "1"]), quiet_display := quiet()
    )
    assert isinstance(quiet_display.console, Console)
    assert config.explain is False
    assert {row.name for row in rows} >= {"model", "image_size", "steps", "lr", "recipe"}


def test_frozen_batch_norms_do_not_move() -> None:
    model = pw.create_model("CNN-4x1", num_classes=3, image_size=16)
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 3, 16, 16))).float()
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.trunk.requires_grad_(False)
    model.train()(images)
    assert all(torch.equal(before[name], value) for name, value in model.named_buffers())
    model.trunk.requires_grad_(True)
    model(images)
    assert not any(torch.equal(before[name], value) for name, value in model.named_buffers())
