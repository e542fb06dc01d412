"""Recipes by name, and how a config takes its open settings from one.

A recipe is one row of a published table (pretrain.py, augreg.py, finetune.py). `--recipe NAME`
follows it to the letter, `--scale` makes a miniature of it, and a run without `--recipe` follows
the default recipe for its start and the size of its data (defaults.py). What the user sets wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from patchwords.errors import ConfigError, did_you_mean
from patchwords.training.config import (
    DURATION_FIELDS,
    FinetuneConfig,
    RecipeSettings,
    flatten_config,
    unflatten_config,
)
from patchwords.training.plan import ResolvedSetting
from patchwords.training.recipes.augreg import AUGREG_RECIPES
from patchwords.training.recipes.defaults import (
    DEFAULT_SETTINGS,
    choose_default_recipe,
    choose_dropout,
    fill_intervals,
)
from patchwords.training.recipes.finetune import FINETUNE_RECIPES
from patchwords.training.recipes.plain import (
    PLAIN_RECIPES,
    choose_plain_batch,
    choose_plain_epochs,
)
from patchwords.training.recipes.pretrain import PRETRAIN_RECIPES
from patchwords.training.recipes.row import Recipe
from patchwords.training.recipes.scaling import (
    RECIPE_REASON,
    REQUESTED_REASON,
    TrainingSize,
    follow_exactly,
    resolve_scale,
    scale_training,
    size_by_default,
    size_by_scale,
)
from patchwords.training.recipes.segmentation import SEGMENTATION_RECIPES, size_segmentation

RecipeConfigT = TypeVar("RecipeConfigT", bound=FinetuneConfig)

RECIPES = {row.name: row for row in (*PRETRAIN_RECIPES, *AUGREG_RECIPES, *FINETUNE_RECIPES)}
USUAL_LR = {"sgd": 0.03, "adamw": 1e-4}  # to try first with an optimizer that the recipe lacks
# What fine-tuning does without a flag for it.
FINETUNE_IMPLIED_SETTINGS: Mapping[str, Any] = {
    "objective": "supervised",
    "loss": "softmax",
    "head": "linear",
}
STOCHASTIC_SETTINGS = ("dropout", "drop_path")
SHOWN_ELSEWHERE = {  # with the model, the data and the objective
    *("model", "image_size", "resize", "crop_fraction"),
    *("objective", "loss", "head", "target", "mask_ratio", "decoder_width", "decoder_depth"),
}


def find_recipe(name: str) -> Recipe:
    """Look up a recipe by name; raises ConfigError if there is none."""
    unlisted = {**PLAIN_RECIPES, **SEGMENTATION_RECIPES}
    row = unlisted.get(name.lower()) or RECIPES.get(name.lower())
    if row is None:
        near = did_you_mean(name, RECIPES)
        raise ConfigError(
            f"unknown recipe {name!r}{near or '; `patchwords recipes` lists the names'}"
        )
    return row


def match_recipes(pattern: str) -> list[Recipe]:
    """List the recipes whose names match a glob."""
    return [row for name, row in RECIPES.items() if fnmatchcase(name, pattern.lower())]


def summarise_recipe(row: Recipe) -> str:
    """Describe a recipe in a few words: source, model, data."""
    return f"{row.source}: {row.model or 'any model'}, {row.data.name}"


def apply_recipe(config: RecipeConfigT, name: str, from_weights: bool = False) -> RecipeConfigT:
    """Set everything that a recipe sets, except what `--scale` changes.

    The command line writes the user's own settings over the result. A run `from_weights` keeps
    the model of its weights. Raises ConfigError for an unknown name and for a setting that the
    verb does not have.
    """
    row = find_recipe(name)
    model = {} if row.model is None or from_weights else {"model": row.model}
    return unflatten_config(config, {"recipe": row.name, **model, **_recipe_settings(row, config)})


def fill_recipe_settings(
    config: FinetuneConfig,
    *,
    images: int,
    from_weights: bool,
    model: str,
    family: str = "vit",
    objective: str = "supervised",
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """Replace every open setting by that of the recipe, and give the reasons.

    Args:
        images: size of the training split.
        from_weights: whether the run starts from trained weights.
        model: canonical model name; the dropout of fine-tuning depends on it.
        family: "vit" (hybrids, too) or "resnet", as in models/build.py.
        objective: "supervised", "masked" or "mae"; the default recipe depends on it.
    """
    if config.recipe.recipe is None:
        row = choose_default_recipe(from_weights, images, family, objective)
        use = _use_default(row, config, images, from_weights)
    else:
        use = _use_named(find_recipe(config.recipe.recipe), config, images, from_weights)
    filled, choices = _fill_settings(config, use, family)
    steps, batch_size = filled.recipe.steps, filled.recipe.batch_size
    assert steps is not None
    assert batch_size is not None
    filled = replace(filled, machine=fill_intervals(config.machine, steps, batch_size, images))
    if family == "resnet" or any(choice.name == "dropout" for choice in choices):
        return filled, choices
    dropout, reason = choose_dropout(config, from_weights, model, objective)
    choices.append(ResolvedSetting("dropout", dropout, reason))
    return replace(filled, model_settings=replace(filled.model_settings, dropout=dropout)), choices


class _RecipeUse(NamedTuple):
    """What a run takes from a recipe."""

    row: Recipe
    settings: Mapping[str, Any]
    amount: list[ResolvedSetting]  # batch_size, steps, lr, warmup_steps
    scale: float | None = None


def _use_default(
    row: Recipe, config: FinetuneConfig, images: int, from_weights: bool
) -> _RecipeUse:
    requested = config.recipe
    settings = {name: row.settings[name] for name in DEFAULT_SETTINGS}
    _check_optimizer(requested, settings["optimizer"], row.citation)
    size = size_by_default(row, requested, images, from_weights)
    return _RecipeUse(row, settings, scale_training(row, requested, images, size))


def _use_named(row: Recipe, config: FinetuneConfig, images: int, from_weights: bool) -> _RecipeUse:
    if row.finetunes and not from_weights:
        raise ConfigError(
            f"--recipe {row.name} starts from trained weights: "
            "patchwords finetune DATA --weights WEIGHTS"
        )
    requested, settings = config.recipe, _recipe_settings(row, config)
    _check_optimizer(requested, settings["optimizer"], row.name)
    if row.name in PLAIN_RECIPES:
        size = size_plain(requested, images)
        return _RecipeUse(row, settings, scale_training(row, requested, images, size))
    if row.name in SEGMENTATION_RECIPES:
        size = size_segmentation(row, requested, images)
        return _RecipeUse(row, settings, scale_training(row, requested, images, size))
    if requested.scale is None:
        return _RecipeUse(row, settings, follow_exactly(row, requested, images))
    scale = resolve_scale(row, requested, images)
    size = size_by_scale(row, requested, images, scale)
    amount = scale_training(row, requested, images, size)
    return _RecipeUse(row, settings, amount, scale)


def size_plain(requested: RecipeSettings, images: int) -> TrainingSize:
    """Size a training of the plain command by the number of images."""
    epochs = choose_plain_epochs(images)
    return TrainingSize(
        requested.batch_size or choose_plain_batch(images),
        epochs * images,
        f"by the number of images, {images:,}",
        f"{epochs} epochs, by the number of images",
    )


def _fill_settings(
    config: FinetuneConfig, use: _RecipeUse, family: str
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """Write a recipe's settings in the place of every None, and list the reasons."""
    row, settings, given = use.row, dict(use.settings), flatten_config(config)
    changes = {name: value for name, value in settings.items() if given[name] is None}
    if family == "resnet":  # it has no dropout to set, which is what a rate of 0 says
        for name in STOCHASTIC_SETTINGS:
            if settings.get(name) == 0 and not given[name]:
                del settings[name]
                changes[name] = None
    named = config.recipe.recipe is not None
    changes |= {name: None for name in DURATION_FIELDS if name in given} | {
        choice.name: choice.value for choice in use.amount
    }
    changes |= {"recipe": row.name, "scale": use.scale} if named else {}
    filled = unflatten_config(config, changes)
    choices = [ResolvedSetting("recipe", row.name, summarise_recipe(row))] if named else []
    choices += use.amount
    values = flatten_config(filled)
    for name, published in settings.items():
        if not named:
            reason = row.citation if given[name] is None else REQUESTED_REASON
        elif not _is_same_setting(values[name], published):
            reason = f"{REQUESTED_REASON}; {row.name}: {_format_value(published)}"
        elif name in SHOWN_ELSEWHERE:
            continue
        else:
            reason = RECIPE_REASON
        choices.append(ResolvedSetting(name, values[name], reason))
    return filled, choices


def _check_optimizer(requested: RecipeSettings, optimizer: str, source: str) -> None:
    """Refuse another optimizer without a learning rate of its own."""
    if requested.optimizer not in {None, optimizer} and requested.lr is None:
        raise ConfigError(
            f"--optimizer {requested.optimizer}: {source} has a learning rate for {optimizer} "
            f"only; give --lr, too ({USUAL_LR[requested.optimizer]:g} is a usual start)"
        )


def _recipe_settings(row: Recipe, config: FinetuneConfig) -> dict[str, Any]:
    """Return the recipe's settings that the verb has flags for.

    Raises ConfigError for a setting that the verb neither has nor implies.
    """
    known = flatten_config(config)
    for name, value in row.settings.items():
        if name not in known and not _is_same_setting(FINETUNE_IMPLIED_SETTINGS.get(name), value):
            raise ConfigError(
                f"--recipe {row.name} needs --{name.replace('_', '-')} {value}, which "
                f"{config.verb} does not have; patchwords pretrain has"
            )
    return {name: value for name, value in row.settings.items() if name in known}


def _is_same_setting(ours: Any, theirs: Any) -> bool:
    """Compare two values of a setting; 224 pixels are 224x224."""
    return bool(ours == theirs) or (isinstance(theirs, tuple) and ours == theirs * 2)


def _format_value(value: Any) -> str:
    return " ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
