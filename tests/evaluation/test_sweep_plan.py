"""What a sweep decides before it starts: the paper's grid and dev split, the same runs for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, DataError, Diverged
from patchwords.evaluation.sweeps.config import SweepConfig, SweepDataSettings, SweepGrid
from patchwords.evaluation.sweeps.sweep import (
    SweepTrial,
    build_sweep_final_config,
    build_sweep_trial_config,
    choose_best_trial,
    choose_dev_share,
    choose_sweep_rates,
    plan_sweep,
)
from patchwords.models.zoo import create_model
from patchwords.training.config import RecipeSettings
from patchwords.weights.store import save_pretrained

USUAL = (0.001, 0.003, 0.01, 0.03)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("weights")
    model = create_model("ViT-mu/4", num_classes=3, image_size=8)
    preprocess = Preprocess(image_size=(8, 8))
    save_pretrained(model, folder, labels="abc", preprocess=preprocess, architecture="ViT-mu/4")
    return str(folder)


def config(weights: str | None = "w", **settings: object) -> SweepConfig:
    return SweepConfig(data="digits", weights=weights, **settings)  # type: ignore[arg-type]


# Table 4 and Appendix B.1.1; sizes of the training sets are those of the data's own pages.
@pytest.mark.parametrize(
    ("images", "share", "rates"),
    [
        (2_040, 0.10, USUAL),  # Flowers-102
        (3_680, 0.10, USUAL),  # Pets
        (20_000, 0.10, USUAL),
        (20_001, 0.02, USUAL),
        (50_000, 0.02, USUAL),  # CIFAR
        (500_000, 0.02, USUAL),
        (500_001, 0.01, (0.003, 0.01, 0.03, 0.06)),
        (1_281_167, 0.01, (0.003, 0.01, 0.03, 0.06)),  # ImageNet
    ],
)
def test_the_protocol_of_data_of_a_size(
    images: int, share: float, rates: tuple[float, ...]
) -> None:
    assert choose_dev_share(config(), images)[0] == share
    assert choose_sweep_rates(config(), images, lr=0.01)[0] == rates


@pytest.mark.parametrize(
    ("recipe", "share", "rates"),
    [
        ("paper-finetune-flowers102", 0.10, USUAL),
        ("paper-finetune-cifar100", 0.02, USUAL),
        ("paper-finetune-imagenet-512", 0.01, (0.003, 0.01, 0.03, 0.06)),
        ("augreg-finetune-pets", 0.10, (0.001, 0.003, 0.01)),
    ],
)
def test_a_recipe_brings_the_protocol_of_its_own_data(
    recipe: str, share: float, rates: tuple[float, ...]
) -> None:
    asked = config(recipe=RecipeSettings(recipe=recipe))
    lr = 0.003 if recipe.startswith("augreg") else 0.01  # of the row
    assert choose_dev_share(asked, 107)[0] == share
    assert choose_sweep_rates(asked, 107, lr)[0] == rates


def test_the_grid_follows_the_recipe_to_a_smaller_batch() -> None:
    # batch 128 in place of 512: the default recipe halves the rate
    rates, why = choose_sweep_rates(config(), 1_009, lr=0.005)
    assert rates == (0.0005, 0.0015, 0.005, 0.015)
    assert "Table 4" in why
    assert "x0.5" in why


def test_one_size_for_all_runs_and_no_more_images_for_the_dev_split(weights: str) -> None:
    asked = config(weights, recipe=RecipeSettings(epochs=2), seed=5, grid=SweepGrid(seeds=2))
    decided, data, choices = plan_sweep(asked)
    sizes = {name: len(part) for name, part in data.splits.items()}
    assert sum(sizes.values()) == 1_797
    images = sizes["train"] + sizes["validation"]
    batch = decided.recipe.batch_size
    assert batch == 256  # 512 halved until an epoch has five steps
    assert decided.recipe.steps == -(-2 * images // batch)  # of all of them, not of the rest
    assert decided.recipe.epochs is None
    assert decided.grid.dev == 0.1
    assert len(decided.grid.lrs or ()) == 4
    assert {choice.name for choice in choices} >= {"lrs", "dev", "steps"}
    cell = build_sweep_trial_config(decided, 0.07, Path("a"))
    finals = [build_sweep_final_config(decided, 0.07, seed, Path("b")) for seed in (5, 6)]
    assert [final.seed for final in finals] == [5, 6]
    for run in (cell, *finals):
        assert type(run).verb == "finetune"
        assert run.recipe == replace(decided.recipe, lr=0.07)
        assert run.data_settings.split_seed == 5  # all are judged by the same test images
    assert cell.data_settings.validation == 0.1
    assert not cell.data_settings.join_validation
    assert all(final.data_settings.validation == 0 for final in finals)
    assert all(final.data_settings.join_validation for final in finals)
    again, _, _ = plan_sweep(decided)
    assert again == decided  # going on decides nothing anew


def test_another_optimizer_has_its_own_rates(weights: str) -> None:
    adam = RecipeSettings(optimizer="adamw", epochs=1)
    decided, _, _ = plan_sweep(config(weights, recipe=adam, grid=SweepGrid(lrs=(3e-4, 1e-4))))
    assert decided.grid.lrs == (1e-4, 3e-4)
    with pytest.raises(ConfigError, match="has a learning rate for sgd only"):
        plan_sweep(config(weights, recipe=adam))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"recipe": RecipeSettings(lr=0.1)}, "--lr 0.1: a sweep chooses the learning rate"),
        ({"recipe": RecipeSettings(early_stop=3)}, "--early-stop needs validation images, and"),
        ({"data_settings": SweepDataSettings(validation=0.2)}, "give its share by --dev"),
        ({"grid": SweepGrid(dev=1.0)}, "--dev 1 is a share: above 0 and less than 1"),
        ({"grid": SweepGrid(dev=0.0)}, "--dev 0 is a share"),
        ({"grid": SweepGrid(seeds=0)}, "--seeds 0: there is at least one"),
        ({"grid": SweepGrid(lrs=(0.1,))}, "a sweep compares two rates or more"),
        ({"grid": SweepGrid(lrs=())}, "a sweep compares two rates or more"),
        ({"grid": SweepGrid(lrs=(0.1, -1.0))}, "--lrs -1: a learning rate is a number above 0"),
        ({"grid": SweepGrid(lrs=(0.1, float("nan")))}, "--lrs nan"),
        ({"grid": SweepGrid(lrs=(0.1, 0.3, 0.1))}, "--lrs names a rate twice"),
    ],
)
def test_settings_that_contradict_a_sweep(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**settings).check()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_grid_and_no_test_images() -> None:
    with pytest.raises(ConfigError, match="start from --weights, or say which"):
        choose_sweep_rates(config(None), 1_009, 0.003)
    asked = config(recipe=RecipeSettings(recipe="bit-finetune-pets"))
    with pytest.raises(ConfigError, match="bit-finetune-pets comes with one learning rate"):
        choose_sweep_rates(asked, 1_009, 0.003)
    with pytest.raises(DataError, match="a sweep needs test images, as those that chose"):
        plan_sweep(config(data_settings=SweepDataSettings(test=0.0)))


def cell(lr: float, accuracy: float | None) -> SweepTrial:
    return SweepTrial(lr, f"lr-{lr:g}", accuracy, None if accuracy is None else 1.0, 97)


def test_the_most_accurate_rate_and_of_equal_ones_the_smallest() -> None:
    cells = [cell(0.001, 0.2), cell(0.003, 0.7), cell(0.01, 0.7), cell(0.03, 0.6)]
    chosen, remarks = choose_best_trial(cells)
    assert chosen.lr == 0.003
    assert "0.003, 0.01 are equally good on the dev images: the smallest is taken" in remarks
    assert not any("end of the grid" in remark for remark in remarks)
    assert choose_best_trial(cells[::-1])[0].lr == 0.003


@pytest.mark.parametrize(("accuracies", "side"), [((0.5, 0.4), "lower"), ((0.4, 0.5), "higher")])
def test_a_choice_at_the_end_of_the_grid_is_said(
    accuracies: tuple[float, float], side: str
) -> None:
    _, remarks = choose_best_trial(
        [cell(lr, a) for lr, a in zip((0.1, 0.3), accuracies, strict=True)]
    )
    assert remarks[-1] == f"it is at the end of the grid: {side} rates may be better still"


def test_rates_that_diverged_are_lost() -> None:
    assert choose_best_trial([cell(0.1, 0.3), cell(0.3, None)])[0].lr == 0.1
    with pytest.raises(Diverged, match=r"at every learning rate \(0\.1 0\.3\); try lower ones"):
        choose_best_trial([cell(0.1, None), cell(0.3, None)])
