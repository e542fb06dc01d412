"""What a sweep will do, decided before it starts: Table 4's grid and dev split, and the runs.

Table 4 and Appendix B.1.1 have three protocols: for Pets and Flowers, for CIFAR, for ImageNet.
Other data take that of the first of these that is at least as large, by the sizes at which
`recipes.py` changes from one row of Table 4 to the next, too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from patchwords.data.examples import TEST, TRAIN, VALIDATION, DatasetSplits
from patchwords.errors import ConfigError, DataError
from patchwords.evaluate.series import build_run_config
from patchwords.evaluate.sweep_config import SweepConfig
from patchwords.train.config import FinetuneConfig
from patchwords.train.job import load_dataset_splits
from patchwords.train.named_recipe import find_recipe
from patchwords.train.recipes import Choice, fill_recipe_settings
from patchwords.train.start import choose_model_family, choose_model_name, load_starting_weights

# (largest training set, share that is held out to choose by, recipe with the grid)
TABLE_4_PROTOCOLS = (
    (20_000, 0.10, "paper-finetune-pets"),
    (500_000, 0.02, "paper-finetune-cifar10"),
    (math.inf, 0.01, "paper-finetune-imagenet"),
)
TABLE_4_BASE_LR = 0.01  # the rate that the recipe for any data starts from; it stands in every grid


def plan_sweep(config: SweepConfig) -> tuple[SweepConfig, DatasetSplits, list[Choice]]:
    """The config with all that its runs share, the data as the first runs see them, the reasons.

    Settings that are there already stay, so that a sweep that goes on decides nothing anew.
    Raises ConfigError and DataError where the protocol cannot be followed.
    """
    data = load_dataset_splits(config)
    require_sweep_splits(data)
    images = len(data.splits[TRAIN]) + len(data.splits[VALIDATION])
    dev, why_dev = choose_dev_share(config, images)
    recipe = config.recipe
    if config.grid.lrs is not None:  # a learning rate belongs to its optimizer
        recipe = replace(recipe, lr=config.grid.lrs[0])
    origin = load_starting_weights(config)
    filled, _ = fill_recipe_settings(
        replace(build_run_config(config, Path()), recipe=recipe),
        images=images,
        from_weights=origin is not None,
        model=choose_model_name(config, origin),
        family=choose_model_family(config, origin),
    )
    assert filled.recipe.lr is not None
    lrs, why_lrs = choose_sweep_rates(config, images, filled.recipe.lr)
    same = {name: getattr(filled.recipe, name) for name in ("steps", "batch_size", "warmup_steps")}
    choices = [
        Choice("lrs", lrs, why_lrs),
        Choice("dev", dev, why_dev),
        *(Choice(name, value, "the same in all runs") for name, value in same.items()),
        Choice("final runs", config.grid.seeds, "on all training images, with the best rate"),
    ]
    settings = config.data_settings
    if settings.split_seed is None:  # the final runs have other seeds, but no other test images
        settings = replace(settings, split_seed=config.seed)
    decided = replace(
        config,
        grid=replace(config.grid, lrs=lrs, dev=dev),
        recipe=replace(config.recipe, epochs=None, examples=None, **same),
        data_settings=settings,
    )
    return decided, data, choices


def require_sweep_splits(data: DatasetSplits) -> None:
    """The images that chose the rate cannot judge it, too."""
    if not len(data.splits.get(TEST, ())):
        raise DataError(
            f"{data.source}: a sweep needs test images, as those that chose the learning rate "
            f"would flatter it; there are {', '.join(data.splits)}: add a test split, or raise "
            "--test where DATA is not divided"
        )
    if not len(data.splits.get(VALIDATION, ())):
        raise DataError(
            f"{data.source}: no image can be spared to choose the learning rate by; add images"
        )


def choose_dev_share(config: SweepConfig, images: int) -> tuple[float, str]:
    """The share of the training images that the rate is chosen by, and why."""
    if config.grid.dev is not None:
        return config.grid.dev, "asked for, where DATA has no validation split of its own"
    for_images, whose = images, f"{images:,} training images"
    if config.recipe.recipe is not None and config.recipe.scale is None:
        row = find_recipe(config.recipe.recipe)
        for_images, whose = row.data.images, row.data.name
    _, share, _ = find_protocol(for_images)
    return share, f"Appendix B.1.1, for {whose}; where DATA has no validation split of its own"


def find_protocol(images: int) -> tuple[float, float, str]:
    """The row of PROTOCOLS for a training set of this size."""
    return next(row for row in TABLE_4_PROTOCOLS if images <= row[0])


def choose_sweep_rates(
    config: SweepConfig, images: int, lr: float
) -> tuple[tuple[float, ...], str]:
    """Learning rates in rising order, and why; `lr` is what a single run would take.

    Where the recipe changes its learning rate for a smaller batch, the grid changes with it.
    """
    if config.grid.lrs is not None:
        return tuple(sorted(config.grid.lrs)), "asked for"
    name = config.recipe.recipe
    if name is None and config.weights is None:
        raise ConfigError(
            "the grid of Table 4 is for fine-tuning: start from --weights, or say which learning "
            "rates to try by --lrs"
        )
    row = find_recipe(name or find_protocol(images)[2])
    if len(row.rates) < 2:
        raise ConfigError(
            f"--recipe {row.name} comes with one learning rate; say which to try by --lrs"
        )
    factor = lr / (row.lr if name is not None else TABLE_4_BASE_LR)
    rates = tuple(float(f"{rate * factor:.3g}") for rate in row.rates)
    grid = " ".join(f"{rate:g}" for rate in row.rates)
    scaled = "" if math.isclose(factor, 1) else f"; x{factor:.3g}, as the recipe does"
    return rates, f"{row.source}, {row.data.name}: {grid}{scaled}"


def build_sweep_trial_config(config: SweepConfig, lr: float, folder: Path) -> FinetuneConfig:
    """A run that is judged by the dev split, and reads no test image."""
    assert config.grid.dev is not None
    run = build_run_config(config, folder)
    return replace(
        run,
        recipe=replace(run.recipe, lr=lr),
        data_settings=replace(run.data_settings, validation=config.grid.dev),
    )


def build_sweep_final_config(
    config: SweepConfig, lr: float, seed: int, folder: Path
) -> FinetuneConfig:
    """A run on all training images, DATA's own validation images among them."""
    run = build_run_config(config, folder)
    return replace(
        run,
        seed=seed,
        recipe=replace(run.recipe, lr=lr),
        data_settings=replace(run.data_settings, validation=0.0, join_validation=True),
    )
