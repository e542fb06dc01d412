"""Published recipes against their sources; `--recipe` and `--scale`."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_exact_resume import same, state_of
from tiny_run import Killed, assemble, config_of, go, go_on, killed_at

from patchwords.errors import ConfigError
from patchwords.models.zoo import resolve_model
from patchwords.training.config import (
    FinetuneConfig,
    PretrainConfig,
    RecipeSettings,
    flatten_config,
    unflatten_config,
)
from patchwords.training.plan import build_training_plan
from patchwords.training.recipes import (
    RECIPES,
    SHOWN_ELSEWHERE,
    apply_recipe,
    fill_recipe_settings,
    find_recipe,
    match_recipes,
)
from patchwords.training.recipes.row import Recipe

INF = math.inf

# Table 3: model, data, epochs, rate, schedule, decay, dropout; clipping only on ImageNet.
TABLE_3 = """
vit-b16-jft              ViT-B/16      jft  7 8e-4 linear 0.1 0.0
vit-b32-jft              ViT-B/32      jft  7 8e-4 linear 0.1 0.0
vit-l32-jft              ViT-L/32      jft  7 6e-4 linear 0.1 0.0
vit-l16-jft-7ep          ViT-L/16      jft  7 4e-4 linear 0.1 0.0
vit-l16-jft-14ep         ViT-L/16      jft 14 4e-4 linear 0.1 0.0
vit-h14-jft              ViT-H/14      jft 14 3e-4 linear 0.1 0.0
r50x1-jft                BiT-R50x1     jft  7 1e-3 linear 0.1 -
r50x2-jft                BiT-R50x2     jft  7 1e-3 linear 0.1 -
r101x1-jft               BiT-R101x1    jft  7 8e-4 linear 0.1 -
r152x1-jft               BiT-R152x1    jft  7 6e-4 linear 0.1 -
r152x2-jft               BiT-R152x2    jft  7 6e-4 linear 0.1 -
r50-vit-b16-jft          R50+ViT-B/16  jft  7 8e-4 linear 0.1 0.0
r50-vit-b32-jft          R50+ViT-B/32  jft  7 8e-4 linear 0.1 0.0
r50-vit-l32-jft          R50+ViT-L/32  jft  7 2e-4 linear 0.1 0.0
r50-vit-l16-jft-7ep      R50+ViT-L/16  jft  7 4e-4 linear 0.1 0.0
r50-vit-l16-jft-14ep     R50+ViT-L/16  jft 14 4e-4 linear 0.1 0.0
vit-b16-imagenet21k      ViT-B/16      i21k 90 1e-3 linear 0.03 0.1
vit-b32-imagenet21k      ViT-B/32      i21k 90 1e-3 linear 0.03 0.1
vit-l16-imagenet21k-30ep ViT-L/16      i21k 30 1e-3 linear 0.03 0.1
vit-l16-imagenet21k-90ep ViT-L/16      i21k 90 1e-3 linear 0.03 0.1
vit-l32-imagenet21k-30ep ViT-L/32      i21k 30 1e-3 linear 0.03 0.1
vit-l32-imagenet21k-90ep ViT-L/32      i21k 90 1e-3 linear 0.03 0.1
vit-b16-imagenet         ViT-B/16      i1k 300 3e-3 cosine 0.3 0.1
vit-b32-imagenet         ViT-B/32      i1k 300 3e-3 cosine 0.3 0.1
vit-l16-imagenet         ViT-L/16      i1k 300 3e-3 cosine 0.3 0.1
vit-l32-imagenet         ViT-L/32      i1k 300 3e-3 cosine 0.3 0.1
"""
IMAGES = {"jft": 303_000_000, "i21k": 14_197_122, "i1k": 1_281_167}
LOSS = {"jft": "sigmoid", "i21k": "sigmoid", "i1k": "softmax"}  # of the authors' code

# Recipe: steps, warm-up, rate, rates tried, pixels.
CIFAR = (0.001, 0.003, 0.01, 0.03)
FINETUNING: dict[str, tuple[int, int, float, tuple[float, ...], int]] = {
    "paper-finetune-imagenet": (20_000, 500, 0.01, (0.003, 0.01, 0.03, 0.06), 384),
    "paper-finetune-imagenet-512": (20_000, 500, 0.01, (0.003, 0.01, 0.03, 0.06), 512),
    "paper-finetune-imagenet-518": (20_000, 500, 0.01, (0.003, 0.01, 0.03, 0.06), 518),
    "paper-finetune-cifar100": (10_000, 500, 0.01, CIFAR, 384),
    "paper-finetune-cifar10": (10_000, 500, 0.01, CIFAR, 384),
    "paper-finetune-pets": (500, 100, 0.01, CIFAR, 384),
    "paper-finetune-flowers102": (500, 100, 0.01, CIFAR, 384),
    "paper-finetune-vtab": (2_500, 200, 0.01, (0.01,), 384),
    "vit-jax-finetune-imagenet": (20_000, 500, 0.03, (), 384),
    "vit-jax-finetune-cifar100": (10_000, 500, 0.03, (), 384),
    "vit-jax-finetune-cifar10": (10_000, 500, 0.03, (), 384),
    "vit-jax-finetune-cifar10-b16": (10_000, 500, 0.01, (), 384),
    "big-vision-finetune-imagenet": (20_000, 500, 0.03, (), 384),
    "big-vision-finetune-cifar100": (10_000, 500, 0.01, (), 384),
    "big-vision-finetune-cifar10": (10_000, 500, 0.003, (), 384),
    "big-vision-finetune-pets": (500, 100, 0.003, (), 384),
    "big-vision-finetune-flowers102": (500, 100, 0.003, (), 384),
    "augreg-finetune-imagenet": (20_000, 500, 0.03, (0.01, 0.03), 384),
    "augreg-finetune-pets": (500, 100, 0.003, (0.001, 0.003, 0.01), 384),
    "augreg-finetune-pets-2500": (2_500, 200, 0.003, (0.001, 0.003, 0.01), 384),
    "augreg-finetune-cifar100": (10_000, 500, 0.003, (0.001, 0.003, 0.01), 384),
    "augreg-finetune-cifar100-2500": (2_500, 200, 0.003, (0.001, 0.003, 0.01), 384),
    "bit-finetune-imagenet": (20_000, 500, 0.003, (), 480),
    "bit-finetune-cifar100": (10_000, 500, 0.003, (), 128),
    "bit-finetune-cifar10": (10_000, 500, 0.003, (), 128),
    "bit-finetune-pets": (500, 100, 0.003, (), 480),
    "bit-finetune-flowers102": (500, 100, 0.003, (), 480),
}


def config_for(row: Recipe, **settings: Any) -> FinetuneConfig:
    verb = FinetuneConfig if row.finetunes else PretrainConfig
    config = apply_recipe(verb(data="x"), row.name, from_weights=False)
    return unflatten_config(config, settings)


def fill_all(
    config: FinetuneConfig, row: Recipe, images: int, family: str = "vit"
) -> dict[str, Any]:
    done, _ = fill_recipe_settings(
        config,
        images=images,
        from_weights=row.finetunes,
        model=row.model or "ViT-B/16",
        family="resnet" if (row.model or "").startswith("BiT") else family,
    )
    return flatten_config(done)


def run_of(name: str, images: int | None = None, **settings: Any) -> dict[str, Any]:
    """Every setting of a run by the recipe, by default on its own data."""
    row = find_recipe(name)
    return fill_all(config_for(row, **settings), row, images or row.data.images)


def has(run: dict[str, Any], **expected: Any) -> bool:
    assert {name: run[name] for name in expected} == expected
    return True


@pytest.mark.parametrize("line", TABLE_3.strip().splitlines(), ids=lambda line: line.split()[0])
def test_table_3(line: str) -> None:
    name, model, data, epochs, lr, schedule, decay, dropout = line.split()
    run = run_of(name)
    steps = math.ceil(int(epochs) * IMAGES[data] / 4096)
    assert has(run, model=model, batch_size=4096, warmup_steps=10_000, steps=steps, epochs=None)
    assert has(run, optimizer="adamw", lr=float(lr), schedule=schedule, weight_decay=float(decay))
    assert has(run, clip=1.0 if data == "i1k" else INF, image_size=(224,))
    assert has(run, dropout=None if dropout == "-" else float(dropout), loss=LOSS[data])
    assert has(run, head="linear" if model.startswith("BiT") else "tanh", label_smoothing=0.0)
    assert has(run, crop_area=(0.05, 1.0), flip=True, randaugment=None, mixup=0.0, drop_path=None)
    assert has(run, resize="crop", crop_fraction=0.875, objective="supervised", ema=None)
    plan = plan_of_run(run)
    assert plan.rate(10_000) == float(lr)
    assert plan.rate(5_000) == float(lr) / 2
    assert plan.rate(steps) == (1e-5 if schedule == "linear" else 0.0)


def plan_of_run(run: dict[str, Any]) -> Any:
    return build_training_plan(unflatten_config(PretrainConfig(), run), 1_000_003)


def test_all_of_table_3_is_there_and_no_more() -> None:
    lines = TABLE_3.strip().splitlines()
    assert [row.name for row in RECIPES.values() if row.source == "Table 3"] == [
        line.split()[0] for line in lines
    ]


def test_steps_of_the_long_trainings() -> None:
    for name, epochs in (("vit-b16-jft", 7), ("vit-h14-jft", 14)):  # of 73,975, rounded up each
        assert 0 <= epochs * 73_975 - find_recipe(name).steps < epochs
    assert find_recipe("vit-b16-jft").steps == 517_823
    assert find_recipe("vit-h14-jft").steps == 1_035_645
    assert round(find_recipe("vit-b16-imagenet").steps, -2) == 93_800
    assert find_recipe("masked-vit-b16-jft").images_seen / 303e6 == pytest.approx(14, abs=0.5)


LEVELS = {
    "none": (None, 0.0),
    "light1": ((2, 0), 0.0),
    "light2": ((2, 10), 0.2),
    "medium1": ((2, 15), 0.2),
    "medium2": ((2, 15), 0.5),
    "strong1": ((2, 20), 0.5),
    "strong2": ((2, 20), 0.8),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("training", "data", "epochs"),
    [("", "i21k", 300), ("-30ep", "i21k", 30), ("-imagenet", "i1k", 300)],
)
def test_the_grid_of_augreg(level: str, training: str, data: str, epochs: int) -> None:
    randaugment, mixup = LEVELS[level]
    for reg in ("", "-reg"):
        for decay in ("", "-wd0.03"):
            run = run_of(f"augreg-{level}{training}{reg}{decay}")
            rate = 0.1 if reg else 0.0
            assert has(run, randaugment=randaugment, mixup=mixup, dropout=rate, drop_path=rate)
            assert has(run, weight_decay=0.03 if decay else 0.1, lr=1e-3, schedule="cosine")
            assert has(run, steps=math.ceil(epochs * IMAGES[data] / 4096), warmup_steps=10_000)
            assert has(run, clip=1.0, loss="sigmoid", head="linear", model=None, batch_size=4096)
    assert len(match_recipes("augreg-*")) - len(match_recipes("augreg-finetune-*")) == 3 * 28


@pytest.mark.parametrize("epochs", [90, 150, 300])
def test_better_plain_vit(epochs: int) -> None:
    run = run_of(f"better-plain-vit-s16-{epochs}ep")
    assert has(run, model="ViT-S/16", classifier="gap", position="sincos2d", head="tanh")
    assert has(run, batch_size=1024, lr=1e-3, warmup_steps=10_000, schedule="cosine", clip=1.0)
    assert has(run, randaugment=(2, 10), mixup=0.2, loss="softmax", crop_fraction=0.875)
    assert has(run, steps=math.ceil(epochs * 1_281_167 / 1024), dropout=0.0)
    assert run["weight_decay"] * run["lr"] == pytest.approx(0.0001)  # theirs is not multiplied


def test_bit_from_scratch() -> None:
    run = run_of("bit-imagenet")
    assert has(run, optimizer="sgd", lr=0.1 * 4096 / 256, warmup_steps=1000, loss="softmax")
    assert has(run, steps=math.ceil(90 * 1_281_167 / 4096), dropout=None, schedule="cosine")
    assert run["weight_decay"] * run["lr"] == pytest.approx(1e-4 * 4096 / 256)
    run = run_of("bit-imagenet21k")
    assert has(run, lr=0.03 * 4096 / 256, warmup_steps=5000, loss="sigmoid")
    assert run["weight_decay"] * run["lr"] == pytest.approx(3e-5 * 4096 / 256)


def test_masked_patches() -> None:
    run = run_of("masked-vit-b16-jft")
    assert has(run, objective="masked", target="mean-colour", mask_ratio=0.5, model="ViT-B/16")
    assert has(run, steps=1_000_000, batch_size=4096, lr=2e-4, warmup_steps=10_000)
    assert has(run, optimizer="adamw", schedule="cosine", dropout=0.0, weight_decay=0.1)


@pytest.mark.parametrize("name", FINETUNING)
def test_finetuning(name: str) -> None:
    steps, warmup, lr, rates, pixels = FINETUNING[name]
    run = run_of(name)
    assert has(run, steps=steps, warmup_steps=warmup, lr=lr, batch_size=512, optimizer="sgd")
    assert has(run, weight_decay=0.0, label_smoothing=0.0, randaugment=None, flip=True)
    assert has(run, image_size=(pixels,), clip=INF if name.startswith("bit") else 1.0)
    assert has(run, ema=0.9999 if pixels in {512, 518} else None)
    assert find_recipe(name).rates == rates
    assert not rates or lr in rates
    squash = name.startswith(("vit-jax", "bit"))
    assert has(run, resize="squash" if squash else "crop")
    if not squash:
        assert has(run, crop_fraction=384 / 448)
    if name.startswith("bit"):
        large = (160, 128) if "cifar" in name else (512, 480)
        assert has(run, schedule="staircase", random_crop=large[1] / large[0])
        assert has(run, mixup=0.0 if "pets" in name or "flowers" in name else 0.1)
        assert has(run, drops=(0.4, 0.6, 0.8) if steps == 500 else (0.3, 0.6, 0.9))
    else:
        assert has(run, schedule="cosine", mixup=0.0, drops=None)
        cut = name.startswith("paper") or name in {
            "big-vision-finetune-cifar10",
            "big-vision-finetune-cifar100",
        }
        assert has(run, random_crop=384 / 448 if cut else None)


def test_the_rate_of_bit_falls_where_its_code_says() -> None:
    plan = plan_of_run(run_of("bit-finetune-pets"))
    assert [plan.rate(step) for step in (50, 100, 200)] == [0.0015, 0.003, 0.003]
    falls = [plan.rate(step) for step in (201, 301, 401, 499)]
    assert falls == pytest.approx([3e-4, 3e-5, 3e-6, 3e-6])
    longer = plan_of_run(run_of("bit-finetune-cifar10"))
    assert [longer.rate(3_000), longer.rate(3_001)] == pytest.approx([3e-3, 3e-4])


def test_all_recipes_for_finetuning_are_asserted() -> None:
    assert {row.name for row in RECIPES.values() if row.finetunes} == set(FINETUNING)


@pytest.mark.parametrize("name", RECIPES)
def test_every_field_of_a_recipe_reaches_the_run(name: str) -> None:
    row = find_recipe(name)
    config = config_for(row)
    family = "resnet" if (row.model or "").startswith("BiT") else "vit"
    done, choices = fill_recipe_settings(
        config,
        images=row.data.images,
        from_weights=row.finetunes,
        model=row.model or "x",
        family=family,
    )
    run = flatten_config(done)
    described = choices[0].why
    scaled = fill_all(config_for(row, scale=0.25), row, row.data.images)
    ratio = scaled["batch_size"] / row.batch_size
    consumed = {
        "name": run["recipe"] == row.name,
        "source": row.source in described,
        "data": row.data.name in described,
        "length": run["steps"] == row.steps,
        "batch_size": run["batch_size"] == row.batch_size,
        "lr": run["lr"] == row.lr,
        "warmup_steps": run["warmup_steps"] == row.warmup_steps,
        "settings": row.settings.items() <= run.items(),
        "model": run["model"] == row.model,
        "finetunes": config.verb == ("finetune" if row.finetunes else "pretrain"),
        "scaling": scaled["lr"]
        == pytest.approx(row.lr * (ratio if row.scaling == "linear" else ratio**0.5), rel=5e-3),
        "rates": True,  # shown: tests/cli/test_recipes_command.py
        "note": True,
    }
    assert consumed.keys() == {field.name for field in fields(Recipe)}
    assert [name for name, there in consumed.items() if not there] == []
    shown = {choice.name: choice.value for choice in choices}
    hidden = row.settings.keys() & SHOWN_ELSEWHERE
    assert {n: v for n, v in row.settings.items() if n not in hidden}.items() <= shown.items()
    if row.model:
        resolve_model(row.model)  # a known model


def test_user_settings_win_over_the_recipe() -> None:
    given = {
        "steps": 17,
        "batch_size": 41,
        "lr": 0.123,
        "warmup_steps": 0,
        "schedule": "linear",
        "mixup": 0.0,
        "clip": 3.0,
        "dropout": 0.2,
        "flip": False,
    }
    for more in ({}, {"scale": 0.01}):
        row = find_recipe("augreg-medium1-reg")
        config = config_for(row, **given, **more)
        done, choices = fill_recipe_settings(
            config, images=1009, from_weights=False, model="ViT-B/16"
        )
        assert has(flatten_config(done), **given)
        why = {choice.name: choice.why for choice in choices}
        assert why["mixup"] == "asked for; augreg-medium1-reg: 0.2"
        assert why["lr"] == "asked for"
        assert why["weight_decay"] == "the recipe"


def test_another_batch_leaves_the_rest_of_the_recipe() -> None:
    run = run_of("vit-b16-imagenet", batch_size=1024)
    assert has(run, lr=3e-3, steps=math.ceil(300 * 1_281_167 / 1024), warmup_steps=10_000)
    run = run_of("paper-finetune-pets", images=1000, batch_size=64)
    assert has(run, lr=0.01, steps=500, warmup_steps=100)


@pytest.mark.parametrize(
    ("scale", "batch", "steps"),
    [
        (1.0, 4096, 93_836),
        (0.5, 2048, 93_836),
        (1 / 64, 64, 93_836),
        (0.3, 1024, math.ceil(0.3 * 300 * 1_281_167 / 1024)),  # 1,228.8: the power of two below
        (0.001, 32, math.ceil(0.3 * 1_281_167 / 32)),
    ],
)
def test_scale_is_the_share_of_the_images_seen(scale: float, batch: int, steps: int) -> None:
    for images in (50_000, 1_281_167):
        run = run_of("vit-b16-imagenet", images, scale=scale)
        assert has(run, batch_size=batch, steps=steps, scale=scale)
        assert run["lr"] == pytest.approx(3e-3 * math.sqrt(batch / 4096), rel=5e-3)
        assert run["warmup_steps"] == round(10_000 / 93_836 * steps)
        assert run["weight_decay"] == 0.3
        assert run["steps"] * batch / (300 * 1_281_167) == pytest.approx(scale, rel=1e-3)
    linear = run_of("bit-imagenet", scale=scale)
    assert linear["lr"] == pytest.approx(1.6 * batch / 4096, rel=5e-3)


def test_scale_auto_keeps_the_epochs() -> None:
    run = run_of("vit-b16-imagenet", 50_000, scale="auto")
    assert has(run, batch_size=128)  # 159.9: the power of two below
    assert run["steps"] == math.ceil(300 * 50_000 / 128)
    assert run["scale"] == 50_000 / 1_281_167
    for images in range(1_600, 50_000, 1_600):  # a whole number of batches
        run = run_of("vit-b16-imagenet", images, scale="auto")
        assert run["steps"] == 300 * images / run["batch_size"]
    run = run_of("paper-finetune-cifar10", 500, scale="auto")
    assert has(run, batch_size=32)
    assert run["steps"] == math.ceil(10_000 * 512 / 50_000 * 500 / 32)
    more = run_of("vit-b16-imagenet", 2_000_000, scale="auto")
    assert has(more, scale=1.0, batch_size=4096, steps=93_836)
    few = run_of("vit-b16-imagenet", 7, scale="auto")
    assert has(few, batch_size=7)


def test_a_requested_length_wins() -> None:
    for scale in (None, 0.5):
        run = run_of("vit-b16-imagenet", scale=scale, batch_size=128, examples=2_000_003)
        assert has(run, steps=math.ceil(2_000_003 / 128), examples=None)


def test_scale_explains_what_it_changed() -> None:
    row = find_recipe("vit-b16-imagenet")
    config = config_for(row, scale=1 / 64)
    _, choices = fill_recipe_settings(config, images=20_011, from_weights=False, model="ViT-B/16")
    why = {choice.name: choice.why for choice in choices}
    assert why["batch_size"] == "recipe 4,096; x 1/64"
    assert why["steps"] == "recipe 93,836; x 1/64 as many images, in batches of 64"
    assert why["lr"] == "recipe 0.003; x the root of 64/4,096"
    assert why["warmup_steps"] == "recipe 10,000; 10.66% of the steps"


@pytest.mark.parametrize("scale", [None, "auto", 0.125])
@pytest.mark.parametrize("name", ["vit-b16-imagenet", "paper-finetune-cifar10", "bit-imagenet"])
def test_a_filled_config_is_a_fixed_point(name: str, scale: Any) -> None:
    row = find_recipe(name)
    images = 1_000_003
    once = run_of(name, images, scale=scale)
    config = unflatten_config(FinetuneConfig() if row.finetunes else PretrainConfig(), once)
    assert fill_all(config, row, images) == once
    assert fill_all(config, row, 1_009) == once  # nothing is left open


@pytest.mark.parametrize(
    ("verb", "name", "reason"),
    [
        (FinetuneConfig, "vit-b16-imagenet21k", "needs --loss sigmoid, which finetune does not"),
        (FinetuneConfig, "vit-b16-imagenet", "needs --head tanh, which finetune does not"),
        (FinetuneConfig, "masked-vit-b16-jft", "needs --objective masked, which finetune does"),
        (FinetuneConfig, "augreg-mediun1", "unknown recipe .*; did you mean 'augreg-medium1'"),
        (PretrainConfig, "xyz", "unknown recipe 'xyz'; `patchwords recipes` lists the names"),
    ],
)
def test_settings_that_a_verb_lacks_are_refused(
    verb: type[FinetuneConfig], name: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        apply_recipe(verb(data="x"), name)


def test_recipes_that_do_not_fit_the_data_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"119 steps .* its warm-up of 10,000; give --scale auto"):
        run_of("vit-b16-imagenet", 1617)
    assert run_of("vit-b16-imagenet", 1617, warmup_steps=3)["steps"] == 119
    row = find_recipe("paper-finetune-pets")
    with pytest.raises(ConfigError, match="starts from trained weights: patchwords finetune"):
        fill_recipe_settings(config_for(row), images=99, from_weights=False, model="ViT-B/16")
    with pytest.raises(ConfigError, match="bit-imagenet has a learning rate for sgd only"):
        run_of("bit-imagenet", optimizer="adamw")


def test_a_resnet_drops_a_dropout_of_zero() -> None:
    row = find_recipe("big-vision-finetune-pets")
    done = fill_all(config_for(row), row, 3_680, family="resnet")
    assert has(done, dropout=None, drop_path=None)
    assert has(fill_all(config_for(row), row, 3_680), dropout=0.0, drop_path=0.0)


def test_weights_bring_their_own_model() -> None:
    named = apply_recipe(FinetuneConfig(data="x"), "paper-finetune-imagenet-512", from_weights=True)
    assert named.model is None
    assert apply_recipe(FinetuneConfig(data="x"), "paper-finetune-imagenet-512").model == "ViT-L/16"


def test_dropout_that_a_recipe_leaves_open_is_that_of_the_official_code() -> None:
    row = find_recipe("paper-finetune-cifar10")
    for model, dropout in (("ViT-L/16", 0.1), ("ViT-B/16", 0.0)):
        done, _ = fill_recipe_settings(
            config_for(row), images=50_000, from_weights=True, model=model
        )
        assert done.model_settings.dropout == dropout


def test_a_run_by_a_recipe_resumes_exactly(tmp_path: Path) -> None:
    few = config_of()
    by_recipe = apply_recipe(FinetuneConfig(data="digits", seed=3), "bit-imagenet")
    config = replace(
        by_recipe,
        machine=few.machine,
        recipe=replace(by_recipe.recipe, scale="auto", steps=24),
    )
    straight = go(assemble(tmp_path / "a", config))
    with pytest.raises(Killed):
        go(assemble(tmp_path / "b", config), killed_at(2))
    job = go_on(tmp_path / "b", config)
    assert job.resumed_at == 15
    assert same(state_of(job), state_of(straight))
    assert straight.config.recipe.scale == 97 / 1_281_167
    assert isinstance(straight.state.optimizer, torch.optim.SGD)


def test_open_settings_are_filled_from_python() -> None:
    config = FinetuneConfig(data="x", recipe=RecipeSettings(recipe="paper-finetune-pets"))
    done, choices = fill_recipe_settings(config, images=99, from_weights=True, model="ViT-B/16")
    assert has(flatten_config(done), lr=0.01, optimizer="sgd", image_size=(384,), steps=500)
    why = {choice.name: choice.why for choice in choices}
    assert why["optimizer"] == "the recipe"


def test_masked_pretraining_keeps_its_rate_on_a_small_set() -> None:
    config = PretrainConfig(data="photos")
    filled, choices = fill_recipe_settings(
        config, images=1_856, from_weights=False, model="ViT-B/16", objective="masked"
    )
    assert filled.recipe.batch_size == 32
    assert filled.recipe.lr == 2e-4
    (why,) = (choice.why for choice in choices if choice.name == "lr")
    assert "kept: with less for smaller batches nothing is learned" in why
