"""Settings of a run without `--recipe`, against the paper's tables and a recorded table."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchwords.training.config import (
    FinetuneConfig,
    MachineSettings,
    ModelSettings,
    RecipeSettings,
    flatten_config,
    unflatten_config,
)
from patchwords.training.plan import build_training_plan
from patchwords.training.recipes import fill_recipe_settings
from patchwords.training.recipes.defaults import choose_default_recipe

IMAGENET = 1_281_167  # training images
# None also in a filled recipe
STAY_OPEN = {"epochs", "examples", "ema", "early_stop", "recipe", "scale", "drops"}
STAY_OPEN |= {"teacher", "teacher_weight"}


def filled(
    images: int,
    from_weights: bool,
    model: str = "ViT-B/16",
    family: str = "vit",
    **given: Any,
) -> FinetuneConfig:
    config = FinetuneConfig(data="x", recipe=RecipeSettings(**given))
    done, _ = fill_recipe_settings(
        config, images=images, from_weights=from_weights, model=model, family=family
    )
    return done


def resolve(images: int, given: dict[str, Any], **start: Any) -> dict[str, Any]:
    config = unflatten_config(FinetuneConfig(data="x"), given)
    return flatten_config(fill_recipe_settings(config, images=images, **start)[0])


STARTS: dict[str, dict[str, Any]] = {
    "scratch": {"from_weights": False, "model": "ViT-B/16"},
    "weights": {"from_weights": True, "model": "ViT-B/16"},
    "weights-L": {"from_weights": True, "model": "ViT-L/16"},
    "scratch-resnet": {"from_weights": False, "model": "BiT-R50x1", "family": "resnet"},
    "weights-resnet": {"from_weights": True, "model": "BiT-R50x1", "family": "resnet"},
    "masked": {"from_weights": False, "model": "ViT-B/16", "objective": "masked"},
}
with open(Path(__file__).with_name("default_recipe.tsv"), encoding="utf-8", newline="") as file:
    RECORDED = list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize("start", STARTS)
def test_defaults_are_those_of_version_0_1(start: str) -> None:
    rows = [row for row in RECORDED if row["start"] == start]
    assert len(rows) >= 12
    for row in rows:
        words = [] if row["given"] == "-" else row["given"].split()
        given = {
            name: yaml.safe_load(value) for name, _, value in (w.partition("=") for w in words)
        }
        settings = resolve(int(row["images"]), given, **STARTS[start])
        recorded = {name: row[name] for name in row if name not in {"start", "images", "given"}}
        assert {name: str(settings[name]) for name in recorded} == recorded, row
        untouched = flatten_config(FinetuneConfig(data="x")).items()
        assert {k: v for k, v in untouched if k not in recorded}.items() <= settings.items()


def test_table_4_is_chosen_by_the_size_of_the_data() -> None:
    """The sizes of BiT's HyperRule, which the lengths of Table 4 go with."""
    sizes = {20_000: "pets", 20_001: "cifar10", 500_000: "cifar10", 500_001: "imagenet"}
    for images, data in {1: "pets", **sizes, 10**9: "imagenet"}.items():
        assert choose_default_recipe(True, images).name == f"paper-finetune-{data}"
        assert choose_default_recipe(True, images, "resnet").name == f"paper-finetune-{data}"


def test_imagenet_from_scratch_is_table_3() -> None:
    config = filled(IMAGENET, from_weights=False)
    recipe = config.recipe
    assert (recipe.optimizer, recipe.schedule) == ("adamw", "cosine")
    assert (recipe.lr, recipe.batch_size, recipe.weight_decay) == (3e-3, 4096, 0.3)
    assert (recipe.steps, recipe.warmup_steps, recipe.clip) == (93_750, 10_000, 1.0)
    assert config.model_settings.dropout == 0.1
    assert round(93_750 * 4096 / IMAGENET) == 300  # epochs


def test_imagenet_from_weights_is_table_4() -> None:
    config = filled(IMAGENET, from_weights=True)
    recipe = config.recipe
    assert (recipe.optimizer, recipe.schedule) == ("sgd", "cosine")
    assert (recipe.lr, recipe.batch_size, recipe.weight_decay) == (0.01, 512, 0.0)
    assert (recipe.steps, recipe.warmup_steps) == (20_000, 500)
    assert config.model_settings.dropout == 0.0


def test_imagenet_from_scratch_is_big_vision_s_for_resnets() -> None:
    config = filled(IMAGENET, False, "BiT-R50x1", "resnet")
    recipe = config.recipe
    assert (recipe.optimizer, recipe.schedule) == ("sgd", "cosine")
    assert (recipe.lr, recipe.batch_size, recipe.warmup_steps) == (0.1 * 4096 / 256, 4096, 1000)
    assert recipe.clip == 1.0
    assert recipe.steps == round(90 * IMAGENET / 4096)
    # Theirs is not multiplied by the learning rate, ours is.
    assert recipe.weight_decay * recipe.lr == pytest.approx(1e-4 * 4096 / 256, rel=1e-12)
    assert config.model_settings.dropout is None  # it has no dropout layers


def test_masked_patches_are_appendix_b_1_2() -> None:
    config = FinetuneConfig(data="x")
    done, choices = fill_recipe_settings(
        config, images=303_000_000, from_weights=False, model="ViT-B/16", objective="masked"
    )
    recipe = done.recipe
    assert (recipe.optimizer, recipe.schedule) == ("adamw", "cosine")
    assert (recipe.lr, recipe.batch_size, recipe.weight_decay) == (2e-4, 4096, 0.1)
    assert (recipe.steps, recipe.warmup_steps) == (1_000_000, 10_000)
    assert done.model_settings.dropout == 0.0
    assert all(choice.value is not None for choice in choices)


def test_resnets_scale_the_learning_rate_linearly() -> None:
    for batch in (32, 256, 1000):
        recipe = filled(IMAGENET, False, "BiT-R50x1", "resnet", batch_size=batch).recipe
        assert recipe.lr == pytest.approx(0.1 * batch / 256, rel=5e-3)  # of three digits
        assert recipe.weight_decay == 1e-3
    small = filled(1258, False, "BiT-R50x1", "resnet").recipe
    assert (small.batch_size, small.lr) == (32, 0.0125)
    tuned = filled(1258, True, "BiT-R50x1", "resnet").recipe  # Table 4's, as for all models
    assert tuned == filled(1258, True).recipe


def test_a_resnet_gets_no_dropout() -> None:
    for from_weights in (True, False):
        _, choices = fill_recipe_settings(
            FinetuneConfig(data="x"),
            images=1258,
            from_weights=from_weights,
            model="BiT-R50x1",
            family="resnet",
        )
        assert "dropout" not in {choice.name for choice in choices}
        sources = " ".join(choice.why for choice in choices)
        assert ("bit_i1k" in sources, "Table 4" in sources) == (not from_weights, from_weights)


def test_large_data_keep_the_images_seen_at_any_batch() -> None:
    recipe = filled(IMAGENET, from_weights=False, batch_size=1024).recipe
    assert recipe.steps == 4 * 93_750
    assert recipe.warmup_steps == 4 * 10_000


@pytest.mark.parametrize(
    ("images", "from_weights", "batch"),
    [
        (2560, True, 512),  # 5 steps an epoch
        (2559, True, 256),
        (160, True, 32),
        (159, True, 32),  # never below 32
        (7, True, 7),  # except for lack of images
        (100 * 4096, False, 4096),  # 100 steps an epoch
        (100 * 4096 - 1, False, 2048),
        (1258, False, 32),
    ],
)
def test_the_batch_shrinks_with_the_data(images: int, from_weights: bool, batch: int) -> None:
    recipe, row = filled(images, from_weights).recipe, choose_default_recipe(from_weights, images)
    assert recipe.batch_size == batch
    # The learning rate follows the root of the batch, rounded to three digits.
    assert recipe.lr == pytest.approx(row.lr * math.sqrt(batch / row.batch_size), rel=5e-3)


def test_length_of_training() -> None:
    assert filled(1000, True).recipe.steps == math.ceil(20 * 1000 / 128)
    assert filled(1000, False).recipe.steps == math.ceil(100 * 1000 / 32)
    assert filled(1000, True, epochs=3.5).recipe.steps == math.ceil(3.5 * 1000 / 128)
    assert filled(1000, True, epochs=0.001).recipe.steps == 1
    assert filled(1000, True, steps=17).recipe.steps == 17
    assert filled(1000, True, epochs=2).recipe.epochs is None  # steps replaces it
    assert filled(1000, True, examples=1281).recipe.steps == 11  # the last batch is whole
    assert filled(1000, True, examples=1).recipe.steps == 1
    assert filled(1000, True, examples=1281).recipe.examples is None


def test_user_settings_win() -> None:
    given = {
        "steps": 17,
        "batch_size": 41,
        "optimizer": "adamw",
        "lr": 0.123,
        "schedule": "linear",
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "clip": 3.0,
        "ema": 0.9,
    }
    for from_weights in (True, False):
        recipe = filled(1009, from_weights, **given).recipe
        assert {name: getattr(recipe, name) for name in given} == given
    config = FinetuneConfig(
        data="x",
        model_settings=ModelSettings(dropout=0.0),
        machine=MachineSettings(log_every=3, eval_every=5, save_every=7),
    )
    done, choices = fill_recipe_settings(config, images=1009, from_weights=False, model="ViT-B/16")
    assert done.model_settings.dropout == 0.0
    machine = done.machine
    assert (machine.log_every, machine.eval_every, machine.save_every) == (3, 5, 7)
    assert {c.name: c.why for c in choices}["dropout"] == "asked for"


def test_every_choice_is_shown_with_the_value_that_is_used() -> None:
    config = FinetuneConfig(data="x", recipe=RecipeSettings(lr=0.02))
    done, choices = fill_recipe_settings(config, images=3001, from_weights=True, model="ViT-L/16")
    used = {**vars(done.recipe), "dropout": done.model_settings.dropout}
    assert all(choice.value == used[choice.name] for choice in choices)
    assert [choice.name for choice in choices if choice.why == "asked for"] == ["lr"]
    decided = {name for name in vars(done.recipe) if getattr(RecipeSettings(), name) is None}
    assert {c.name for c in choices} == decided - STAY_OPEN | {"dropout"}


@pytest.mark.parametrize("from_weights", [True, False])
@pytest.mark.parametrize("images", [3, 50, 1258, 45_000, 2_000_003])
@pytest.mark.parametrize(
    "given", [{}, {"epochs": 3.0}, {"steps": 1}, {"examples": 991}, {"batch_size": 6}]
)
@pytest.mark.parametrize("family", ["vit", "resnet"])
def test_a_filled_config_is_a_fixed_point(
    images: int, from_weights: bool, given: dict[str, Any], family: str
) -> None:
    once = filled(images, from_weights, family=family, **given)
    twice, choices = fill_recipe_settings(
        once, images=images, from_weights=from_weights, model="ViT-B/16", family=family
    )
    assert twice == once
    assert {choice.why for choice in choices} == {"asked for"}
    plan = build_training_plan(once, images)
    assert 1 <= plan.log_every <= plan.steps
    assert 1 <= plan.eval_every <= plan.steps
    assert plan.warmup_steps <= plan.steps


@pytest.mark.parametrize(
    ("model", "dropout"),
    [
        ("ViT-B/16", 0.0),
        ("ViT-L/16", 0.1),
        ("ViT-L/32", 0.0),
        ("ViT-H/14", 0.1),
        ("R50+ViT-B/16", 0.1),
        ("R50+ViT-L/32", 0.1),
        ("R50+ViT-L/16", 0.1),  # like its ViT
        ("ViT-L/16 with position 2d", 0.1),
        ("R26+ViT-S/32", 0.0),
        ("Axial-ViT-B/16", 0.0),
    ],
)
def test_dropout_when_finetuning_is_that_of_the_official_code(model: str, dropout: float) -> None:
    assert filled(1000, True, model).model_settings.dropout == dropout
    assert filled(1000, False, model).model_settings.dropout == 0.1  # Table 3


def test_intervals() -> None:
    short = filled(1000, True, steps=5).machine
    assert (short.log_every, short.eval_every, short.save_every) == (1, 5, 5)
    usual = filled(1280, True, steps=100, batch_size=128).machine
    assert (usual.log_every, usual.eval_every, usual.save_every) == (1, 10, 10)  # once an epoch
    long = filled(1280, True, steps=90_000, batch_size=128).machine
    assert (long.log_every, long.eval_every, long.save_every) == (50, 3000, 3000)  # 30 times
    config = FinetuneConfig(data="x", machine=MachineSettings(eval_every=17))
    config = replace(config, recipe=RecipeSettings(steps=1000))
    assert (
        fill_recipe_settings(config, images=1280, from_weights=True, model="x")[
            0
        ].machine.save_every
        == 17
    )
