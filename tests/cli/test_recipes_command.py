"""`patchwords recipes`, and where settings come from when there is a recipe."""

from __future__ import annotations

import doctest
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchwords.cli import main
from patchwords.cli.config_files import parse_with_files
from patchwords.cli.help import format_help
from patchwords.cli.train import recipes as recipes_summary
from patchwords.cli.train.finetune import FinetuneCommand
from patchwords.cli.train.pretrain import PretrainCommand
from patchwords.cli.train.sweep import SweepCommand
from patchwords.cli.train.vtab import VtabCommand
from patchwords.errors import ConfigError
from patchwords.planning.table6 import TABLE6
from patchwords.training.config import config_to_yaml, flatten_config
from patchwords.training.recipes import (
    RECIPES,
    fill_recipe_settings,
    find_recipe,
    pretrain,
    scaling,
)

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Words of the command line -> what is printed, on a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str) -> str:
        assert main(["recipes", *words]) == 0
        return capsys.readouterr().out

    return run


def test_the_list_has_every_recipe_under_its_source(say: Say) -> None:
    lines = say().splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines)
    source, found = "", {}
    for line in lines[1:]:
        if line.startswith("  "):
            found[line.split()[0]] = source
        else:
            source = line.strip()
    assert found == {row.name: row.source for row in RECIPES.values()}
    assert sum(line.strip() == "Table 4" for line in lines) == 1


def test_a_pipe_does_not_cut_names(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = say()
    assert all(name in text for name in RECIPES)
    assert "…" not in text


def test_a_pattern_chooses(say: Say) -> None:
    rows = json.loads(say("*-CIFAR10", "--json"))
    assert [row["recipe"] for row in rows] == [
        "paper-finetune-cifar10",
        "vit-jax-finetune-cifar10",
        "big-vision-finetune-cifar10",
        "bit-finetune-cifar10",
    ]


@pytest.mark.parametrize("name", ["vit-b16-imagenet21k", "augreg-medium1", "bit-finetune-pets"])
def test_one_is_shown_whole(say: Say, name: str) -> None:
    row, text = find_recipe(name), say(name)
    assert max(map(len, text.splitlines())) <= 100
    words = text.replace("\n", " ").split()
    assert {*row.settings, "data", "model", "batch_size", "lr", "warmup_steps"} <= set(words)
    assert row.source in text
    assert row.note.split()[-1] in text
    assert f"--recipe {name}" in text


def test_rates_that_were_tried_are_shown(say: Say) -> None:
    assert "one of 0.003 0.01 0.03 0.06" in say("paper-finetune-imagenet")
    assert "one of" not in say("vit-b16-jft")


def test_what_is_published_is_shown(say: Say) -> None:
    shown = "79.13 % on ImageNet, ViT-B/32, fine-tuned at 224 pixels (AugReg, Table 3)"
    assert f"Published: {shown}." in say("augreg-light1")
    assert "Published" not in say("bit-imagenet")
    (row,) = json.loads(say("better-plain-vit-s16-90ep", "--json"))
    assert row["published"] == [
        {
            "model": "ViT-S/16",
            "accuracy": 76.5,
            "on": "ImageNet",
            "protocol": "at 224 pixels",
            "source": "arXiv 2205.01580",
        }
    ]


def test_a_recipe_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "paper-finetune-cifar11"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'paper-finetune-cifar10" in error
    assert error.count("\n") == 1


def test_json_is_strict_and_whole(say: Say) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    rows = {r["recipe"]: r for r in json.loads(say("--json"), parse_constant=refuse)}
    assert rows.keys() == RECIPES.keys()
    row = rows["vit-h14-jft"]
    assert (row["epochs"], row["updates"], row["images_seen"]) == (14, 1_035_645, 4_242_000_000)
    assert row["settings"]["clip"] is None
    assert row["command"] == "patchwords pretrain DATA --recipe vit-h14-jft"
    assert rows["paper-finetune-pets"]["command"].startswith("patchwords finetune DATA --weights")


def test_costs_are_those_of_table_6(say: Say) -> None:
    """The head for 18k classes and its hidden layer add less than 1 %."""
    rows = [
        r for r in json.loads(say("--json")) if r["source"] == "Table 3" and "jft" in r["recipe"]
    ]
    counted = {(row.model, row.epochs): row.counted() for row in TABLE6}
    assert len(rows) == 16
    for row in rows:
        wanted = counted[row["model"], row["epochs"]]
        assert 1 < row["training_flops"] / 1e18 / wanted < 1.01, row["recipe"]


def test_costs_of_other_pixels_and_heads(say: Say) -> None:
    def flops(name: str) -> float:
        return json.loads(say(name, "--json"))[0]["training_flops"]

    # B/16: 196 patches of 768 numbers, 197 tokens, twelve blocks; a tanh layer, 18,000 classes.
    block = 4 * 197 * 768**2 + 2 * 197**2 * 768 + 2 * 197 * 768 * 3072
    image = 196 * 768 * 768 + 12 * block + 768 * 768 + 768 * 18_000
    assert flops("vit-b16-jft") == 6 * image * 7 * 303_000_000
    # L/16 at 512 pixels has 362.0 GMACs (PAPER's unit: multiply-adds); 20,000 batches of 512.
    assert flops("paper-finetune-imagenet-512") == pytest.approx(
        6 * 362.0e9 * 20_000 * 512, rel=1e-3
    )
    # S/16 with the mean of 196 tokens and a hidden layer: about the 4.6 GMACs of the plain one.
    assert flops("better-plain-vit-s16-90ep") == pytest.approx(6 * 4.6e9 * 90 * 1_281_167, rel=0.01)


def test_words_for_the_trainer_s_own_constants() -> None:
    import torch

    from patchwords.models.config import ViTConfig
    from patchwords.models.vit import ViT
    from patchwords.training.engine.optimizer import build_optimizer
    from patchwords.training.plan import LINEAR_END, TrainingPlan

    shape = ViTConfig(patch_size=4, width=8, depth=1, heads=1, mlp_width=8, image_size=(8, 8))
    for name, key, value in (("adamw", "betas", (0.9, 0.999)), ("sgd", "momentum", 0.9)):
        plan = TrainingPlan(7, 5, 3, name, 0.1, "cosine", 0, 0.1, 1, 1, 1)
        optimizer = build_optimizer(ViT(shape), plan, shape)
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.defaults[key] == value
        words = recipes_summary.VALUE_MEANINGS["optimizer", name]
        assert all(str(part) in words for part in (value if key == "betas" else [value]))
    assert f"{LINEAR_END:.5f}" in recipes_summary.VALUE_MEANINGS["schedule", "linear"]


def settings_of(*words: Any) -> dict[str, Any]:
    parsed = parse_with_files(FinetuneCommand, [str(word) for word in words], "patchwords finetune")
    return flatten_config(parsed)


def test_flags_win_over_a_file_and_a_file_over_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: bit-finetune-cifar10\nmixup: 0.5\nclip: 2.0\n")
    words = ("x", "--weights", "w", "--config", file)
    run = settings_of(*words, "--clip", "3", "--random-crop", "None")
    assert (run["mixup"], run["clip"], run["random_crop"]) == (0.5, 3.0, None)
    assert (run["schedule"], run["resize"], run["model"]) == ("staircase", "squash", None)
    # A value that is the default, too, is one that somebody set.
    run = settings_of("x", "--weights", "w", "--recipe", "BIT-finetune-cifar10", "--mixup", "0")
    assert (run["mixup"], run["schedule"]) == (0.0, "staircase")
    assert run["steps"] is run["batch_size"] is run["lr"] is run["warmup_steps"] is None  # --scale


def test_the_model_of_a_recipe_gives_way_to_weights() -> None:
    assert settings_of("x", "--recipe", "bit-imagenet")["model"] == "BiT-R50x1"
    assert settings_of("x", "--recipe", "bit-imagenet", "--model", "BiT-R26x1")["model"] == (
        "BiT-R26x1"
    )
    assert settings_of("x", "--recipe", "bit-imagenet", "--weights", "w")["model"] is None


def test_without_a_recipe_nothing_is_preset() -> None:
    model = ("--model", "ViT-B/16")  # without it the data choose the model and the plain recipe
    assert settings_of("x", *model) == flatten_config(FinetuneCommand(data="x", model="ViT-B/16"))


def test_a_file_that_has_decided_takes_no_recipe(tmp_path: Path) -> None:
    config, _ = fill_recipe_settings(
        FinetuneCommand(data="x"), images=1009, from_weights=False, model="ViT-B/16", family="vit"
    )
    file = tmp_path / "config.yaml"
    file.write_text(config_to_yaml(config))
    for flag in (("--recipe", "bit-imagenet"), ("--scale", "0.5")):
        with pytest.raises(ConfigError, match=f"^{flag[0]} .* has {flag[0][2:]} none, and the"):
            settings_of("x", "--config", file, *flag)


def test_config_yaml_says_the_recipe_and_all_that_was_decided(tmp_path: Path) -> None:
    words = ["x", "--recipe", "bit-imagenet", "--scale", "auto"]
    asked = parse_with_files(FinetuneCommand, words, "patchwords finetune")
    done, _ = fill_recipe_settings(
        asked, images=50_021, from_weights=False, model="BiT-R50x1", family="resnet"
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config_to_yaml(done))
    (run / "environment.json").write_text(json.dumps({"asked": {"scale": "auto"}}))
    stored = {**flatten_config(done), "output": str(run), "resume": True}
    assert stored["recipe"] == "bit-imagenet"
    assert stored["scale"] == 50_021 / 1_281_167
    for again in ([], words[1:]):
        assert settings_of("x", "--output", run, "--resume", *again) == stored
    with pytest.raises(ConfigError, match=r"--resume: .* was started with --recipe bit-imagenet"):
        settings_of("x", "--output", run, "--resume", "--recipe", "bit-imagenet21k")
    # The same settings once more, as a run of its own.
    made = settings_of("x", "--config", run / "config.yaml")
    assert {**made, "output": str(run), "resume": True, "config": None} == stored


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (FinetuneCommand, "start a new run with --weights {run}"),
        (SweepCommand, "start again with another --output"),
    ],
)
def test_other_settings_on_resume_have_a_hint_that_suits_the_verb(
    command: type, instead: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("data: x\nclip: 2.0\n")
    words = ["x", "--output", str(tmp_path), "--resume", "--clip", "3"]
    with pytest.raises(ConfigError) as error:
        parse_with_files(command, words, "patchwords")
    assert str(error.value) == (
        f"--resume: {tmp_path} was started with --clip 2.0, not with 3.0; leave it out, or "
        + instead.format(run=tmp_path)
    )


@pytest.mark.parametrize("command", [FinetuneCommand, PretrainCommand, SweepCommand, VtabCommand])
def test_output_says_what_the_folder_is_called(
    command: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "79")
    name = {SweepCommand: "runs/DATA-sweep", VtabCommand: "runs/ROOT-vtab"}.get(
        command, "runs/DATA-MODEL"
    )
    text = " ".join(format_help(command, "patchwords").split())
    assert f"folder to write; default: {name}" in text


@pytest.mark.parametrize("module", [recipes_summary, scaling, pretrain])
def test_examples_in_docstrings(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
