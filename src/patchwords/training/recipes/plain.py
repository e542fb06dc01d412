"""What `patchwords finetune DATA` does where no model, weights or image size is named.

The recipes are ours. That from scratch on few images is measured (docs/results.md); which model
learns by it, at which size, follows from the data (`list_plain_models`). Published weights come
first where there are any (auto_weights.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from patchwords.training.config import (
    FinetuneConfig,
    ModelSettings,
    RecipeSettings,
    flatten_config,
    unflatten_config,
)
from patchwords.training.recipes.row import Recipe, RecipeDataset

Balance = Literal["none", "loss"]

PLAIN = "plain"
DEFAULT_CPU_BUDGET = "15m"
SMALL_IMAGE_SIDE = 40  # pixels: below, a larger model has nothing more to see
LARGE_DATA_IMAGES = 1_000_000  # from here on the paper's own recipe, as with --model
MANY_IMAGES = 20_000  # from here on a GPU trains a larger model
DOMINANT_SHARE = 0.875  # of the images in one class: then rare classes weigh more in the loss
IMAGES_SEEN = 250_000  # in all, repeats counted, where the number of epochs lies between these two
MIN_EPOCHS, MAX_EPOCHS = 30, 100

PLAIN_RECIPE = Recipe(
    PLAIN,
    "for small data",
    RecipeDataset("flower photos", 2_642, 5),
    ("epochs", 60),
    64,
    3e-3,
    248,
    {
        "optimizer": "adamw",
        "schedule": "cosine",
        "weight_decay": 0.05,
        "label_smoothing": 0.1,
        "crop_area": (0.25, 1.0),
        "color_jitter": 0.2,
    },
)


# From published weights, of which the head alone learns: a new layer on features that are computed
# once, in a few crops of each image. Chosen, not measured.
PLAIN_HEAD_RECIPE = Recipe(
    "plain-head",
    "for small data, the head of published weights",
    PLAIN_RECIPE.data,
    ("epochs", 60),
    64,
    1e-3,
    248,
    {
        **{name: v for name, v in PLAIN_RECIPE.settings.items() if name != "color_jitter"},
        "crop_area": (0.5, 1.0),
        "dropout": 0.0,
        "drop_path": 0.0,
        "train": "head",
        "views": 4,
    },
    finetunes=True,
)
PLAIN_RECIPES = {row.name: row for row in (PLAIN_RECIPE, PLAIN_HEAD_RECIPE)}
# All settings that one of these may make, each with another value than without a recipe.
PLAIN_SETTINGS: Mapping[str, Any] = {**PLAIN_HEAD_RECIPE.settings, **PLAIN_RECIPE.settings}


@dataclass(frozen=True)
class PlainRecipeSettings(RecipeSettings):
    """Recipe settings of a run that leaves the model to the data, until that is decided."""

    named: tuple[str, ...] = ()  # of PLAIN_SETTINGS: what the user set, which no recipe changes


def mark_plain(config: Any, named: Sequence[str]) -> Any:
    """Note which settings are the user's own, whatever their values."""
    recipe = PlainRecipeSettings(**vars(config.recipe), named=tuple(named))
    return replace(config, recipe=recipe)


def adopt_recipe(config: FinetuneConfig, row: Recipe | None) -> FinetuneConfig:
    """Replace the settings of the plain recipe by another's, or by none; the user's own stay."""
    assert isinstance(config.recipe, PlainRecipeSettings)
    blank = flatten_config(FinetuneConfig())
    settings = {name: blank[name] for name in PLAIN_SETTINGS} | dict(row.settings if row else {})
    free = {name: v for name, v in settings.items() if name not in config.recipe.named}
    return unflatten_config(config, {**free, "recipe": row.name if row else None})


def end_choice(config: FinetuneConfig) -> FinetuneConfig:
    """Return settings that leave nothing more to the data."""
    names = [field.name for field in fields(RecipeSettings)]
    recipe = RecipeSettings(**{name: getattr(config.recipe, name) for name in names})
    return replace(config, recipe=recipe)


class PlainModel(NamedTuple):
    """A model for the data."""

    model: str
    image_size: int


def is_plain(config: FinetuneConfig) -> bool:
    """Whether settings without a recipe leave the choice of the model to the data."""
    shape = flatten_config(ModelSettings())
    named = [name for name in shape if getattr(config.model_settings, name) is not None]
    return (
        config.verb == "finetune"
        and config.task in {"auto", "classification"}
        and not named
        and config.weights in {None, "none", "auto"}
        and not (config.model or config.recipe.recipe)
    )


def list_plain_models(images: int, short_side: float, device: str) -> list[PlainModel]:
    """Choose the model by the data and the device; cheaper ones follow, for a short budget.

    Args:
        images: size of the training split.
        short_side: median short side of the images in pixels.
        device: "cpu", or a GPU.
    """
    if device != "cpu" and images >= MANY_IMAGES and short_side > SMALL_IMAGE_SIDE:
        return [PlainModel("C+ViT-S/16", 128)]
    return [PlainModel("CNN-8x2", 64), PlainModel("CNN-4x1", 64), PlainModel("CNN-4x1", 32)]


def choose_plain_batch(images: int) -> int:
    """Halve the recipe's batch until an epoch has 16 steps; 128 for many images."""
    if images >= MANY_IMAGES:
        return 2 * PLAIN_RECIPE.batch_size
    batch = PLAIN_RECIPE.batch_size
    while batch > 16 and batch * 16 > images:
        batch //= 2
    return min(batch, images)


def choose_plain_epochs(images: int) -> int:
    """Choose the most epochs: the fewer images, the more."""
    return round(min(MAX_EPOCHS, max(MIN_EPOCHS, IMAGES_SEEN / images)))


def choose_balance(counts: Sequence[int]) -> tuple[Balance, str]:
    """Choose to weigh the loss where one class has nearly all images; -> value and reason."""
    share = max(counts) / max(1, sum(counts))
    if share < DOMINANT_SHARE:
        return "none", f"the largest class has {share:.0%} of the images"
    return "loss", f"one class has {share:.0%} of the images: the others weigh more in the loss"
