"""`--recipe NAME`: a published recipe to the letter, or scaled down by `--scale`.

What a row says is taken from it as it stands, but for what somebody sets. `--scale S` makes a
miniature, which sees S times as many images as the recipe sees on its own data:

- batch: S times the row's, rounded down to a power of two, at least 32;
- learning rate: with the root of the batch, or linearly where the row says so;
- steps: as many as the images take;
- warm-up: the same share of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from patchwords.errors import ConfigError, did_you_mean
from patchwords.train.choice import ResolvedSetting
from patchwords.train.config import DURATION_FIELDS, FinetuneConfig, RecipeSettings
from patchwords.train.recipe_augreg import AUGREG_RECIPES
from patchwords.train.recipe_finetune import FINETUNE_RECIPES
from patchwords.train.recipe_pretrain import PRETRAIN_RECIPES
from patchwords.train.recipe_row import Recipe
from patchwords.train.settings import flatten_config, unflatten_config

RecipeConfigT = TypeVar("Config", bound=FinetuneConfig)

RECIPES = {row.name: row for row in (*PRETRAIN_RECIPES, *AUGREG_RECIPES, *FINETUNE_RECIPES)}
MIN_SCALED_BATCH = 32
DEFAULT_LR = {"sgd": 0.03, "adamw": 1e-4}  # to try first, where a recipe has none
# What fine-tuning does without having a flag for it.
FINETUNE_IMPLIED_SETTINGS: Mapping[str, Any] = {
    "objective": "supervised",
    "loss": "softmax",
    "head": "linear",
}
RECIPE_REASON = "the recipe"
STOCHASTIC_SETTINGS = ("dropout", "drop_path")
SHOWN_ELSEWHERE = {  # with the model, the data, and what is learned
    *("model", "image_size", "resize", "crop_fraction"),
    *("objective", "loss", "head", "target", "mask_ratio"),
}


def find_recipe(name: str) -> Recipe:
    """Raises ConfigError for a name that is none."""
    row = RECIPES.get(name.lower())
    if row is None:
        near = did_you_mean(name, RECIPES)
        raise ConfigError(
            f"unknown recipe {name!r}{near or '; `patchwords recipes` lists the names'}"
        )
    return row


def match_recipes(pattern: str) -> list[Recipe]:
    """The recipes whose names the glob matches."""
    return [row for name, row in RECIPES.items() if fnmatchcase(name, pattern.lower())]


def apply_recipe(config: RecipeConfigT, name: str, from_weights: bool = False) -> RecipeConfigT:
    """The config with all that the recipe sets and `--scale` leaves alone.

    What somebody else sets is to be written over it: the command line does so. A recipe's model is
    not taken where the run starts `from_weights`, which have one. Raises ConfigError for an
    unknown name, and where the recipe needs what the verb has not.
    """
    row = find_recipe(name)
    model = {} if row.model is None or from_weights else {"model": row.model}
    return unflatten_config(config, {"recipe": row.name, **model, **_recipe_settings(row, config)})


def fill_from_named_recipe(
    config: FinetuneConfig, images: int, from_weights: bool, family: str = "vit"
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """The config with what the recipe sets in the place of every `None`, and the reasons."""
    asked = config.recipe
    assert asked.recipe is not None
    row = find_recipe(asked.recipe)
    if row.finetunes and not from_weights:
        raise ConfigError(
            f"--recipe {row.name} starts from trained weights: "
            "patchwords finetune DATA --weights WEIGHTS"
        )
    settings, given = _recipe_settings(row, config), flatten_config(config)
    check_recipe_optimizer(asked, settings["optimizer"], row.name)
    size = (
        _exact_amount(row, asked, images)
        if asked.scale is None
        else _scaled_amount(row, asked, images)
    )
    sized = dict.fromkeys(DURATION_FIELDS) | {choice.name: choice.value for choice in size.choices}
    missing = {name: value for name, value in settings.items() if given[name] is None}
    if family == "resnet":  # it has no place for them, and so does what a rate of 0 says
        absent = [
            name for name in STOCHASTIC_SETTINGS if settings.get(name) == 0 and not given[name]
        ]
        missing |= dict.fromkeys(absent)
        settings = {name: value for name, value in settings.items() if name not in absent}
    settled = {"recipe": row.name, "scale": size.scale}
    filled = unflatten_config(config, {**missing, **sized, **settled})
    now = flatten_config(filled)
    choices = [ResolvedSetting("recipe", row.name, summarise_recipe(row)), *size.choices]
    for name, value in settings.items():
        own = _is_same_setting(now[name], value)
        if not own or name not in SHOWN_ELSEWHERE:
            why = RECIPE_REASON if own else f"asked for; {row.name}: {_format_value(value)}"
            choices.append(ResolvedSetting(name, now[name], why))
    return filled, choices


def summarise_recipe(row: Recipe) -> str:
    """Where it is from and what it is for, in a few words."""
    return f"{row.source}: {row.model or 'any model'}, {row.data.name}"


def check_recipe_optimizer(asked: RecipeSettings, optimizer: str, source: str) -> None:
    """A learning rate belongs to its optimizer; raises ConfigError."""
    if asked.optimizer not in {None, optimizer} and asked.lr is None:
        raise ConfigError(
            f"--optimizer {asked.optimizer}: {source} has a learning rate for {optimizer} only; "
            f"give --lr, too ({DEFAULT_LR[asked.optimizer]:g} is a usual start)"
        )


class TrainingAmount(NamedTuple):
    """How much training: batch_size, steps, lr and warmup_steps."""

    scale: float | None
    choices: list[ResolvedSetting]


def _exact_amount(row: Recipe, asked: RecipeSettings, images: int) -> TrainingAmount:
    """As the row says, whatever the data."""
    batch = asked.batch_size or row.batch_size
    kind, amount = row.length
    if kind == "epochs":
        steps, why = math.ceil(amount * images / batch), f"{amount:g} epochs of {images:,} images"
    else:
        steps, why = int(amount), RECIPE_REASON
    steps, why = resolve_requested_steps(asked, images, batch) or (steps, why)
    if asked.warmup_steps is None and row.warmup_steps >= steps:
        raise ConfigError(
            f"--recipe {row.name}: {steps:,} steps ({why}) end within its warm-up of "
            f"{row.warmup_steps:,}; give --scale auto, which fits it to the data, or --warmup-steps"
        )
    other = "" if batch == row.batch_size else f", for batches of {row.batch_size:,}"
    return TrainingAmount(
        None,
        [
            _resolve_setting(asked, "batch_size", row.batch_size, RECIPE_REASON),
            ResolvedSetting("steps", steps, why),
            _resolve_setting(asked, "lr", row.lr, f"{RECIPE_REASON}{other}"),
            _resolve_setting(asked, "warmup_steps", row.warmup_steps, RECIPE_REASON),
        ],
    )


def _scaled_amount(row: Recipe, asked: RecipeSettings, images: int) -> TrainingAmount:
    """A miniature; every change is said."""
    if asked.scale == "auto":
        scale = min(1.0, images / row.data.images)
        share = f"{scale:.3g} ({images:,} of {row.data.images:,} images)"
    else:
        assert asked.scale is not None
        scale, share = asked.scale, _format_fraction(asked.scale)
    goal = row.batch_size * scale
    batch = asked.batch_size or min(images, max(MIN_SCALED_BATCH, 2 ** math.floor(math.log2(goal))))
    least = f", at least {MIN_SCALED_BATCH}" if goal < MIN_SCALED_BATCH else ", a power of two"
    if batch == images:
        least = ", no more than there are images"
    why_batch = f"recipe {row.batch_size:,}; x {share}{'' if batch == goal else least}"
    seen = (
        f"recipe {row.steps:,}; x {_format_fraction(scale)} as many images, in batches of {batch:,}"
    )
    # Rounded first: a scale such as 3,000 / 1,281,167 is not exact.
    steps = math.ceil(round(scale * row.images_seen / batch, 6))
    steps, why_steps = resolve_requested_steps(asked, images, batch) or (steps, seen)
    ratio = batch / row.batch_size
    factor, how = (ratio, "") if row.scaling == "linear" else (math.sqrt(ratio), "the root of ")
    lr = float(f"{row.lr * factor:.3g}")
    why_lr = f"recipe {row.lr:g}; x {how}{batch:,}/{row.batch_size:,}"
    warmup = round(row.warmup_steps / row.steps * steps)
    why_warmup = f"recipe {row.warmup_steps:,}; {row.warmup_steps / row.steps:.2%} of the steps"
    return TrainingAmount(
        scale,
        [
            _resolve_setting(asked, "batch_size", batch, why_batch),
            ResolvedSetting("steps", steps, why_steps),
            _resolve_setting(asked, "lr", lr, why_lr),
            _resolve_setting(asked, "warmup_steps", warmup, why_warmup),
        ],
    )


def _resolve_setting(asked: RecipeSettings, name: str, value: float, why: str) -> ResolvedSetting:
    """The value that somebody asked for, or the recipe's."""
    own = getattr(asked, name)
    return (
        ResolvedSetting(name, value, why)
        if own is None
        else ResolvedSetting(name, own, "asked for")
    )


def resolve_requested_steps(
    asked: RecipeSettings, images: int, batch: int
) -> tuple[int, str] | None:
    """Steps as somebody asked for them, or for epochs or examples, in words, too; else None."""
    if asked.steps is not None:
        return asked.steps, "asked for"
    if asked.examples is not None:
        seen, said = float(asked.examples), f"{asked.examples:,} examples"
    elif asked.epochs is not None:
        seen, said = asked.epochs * images, f"{asked.epochs:g} epochs"
    else:
        return None
    return max(1, math.ceil(seen / batch)), f"{said}, asked for"


def _recipe_settings(row: Recipe, config: FinetuneConfig) -> dict[str, Any]:
    """Those that this verb has flags for; raises ConfigError where one is needed that it has not.

    What the verb does in any case needs no flag.
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
    """Whether they are one setting; 224 pixels are 224x224."""
    return bool(ours == theirs) or (isinstance(theirs, tuple) and ours == theirs * 2)


def _format_value(value: Any) -> str:
    return " ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def _format_fraction(share: float) -> str:
    """
    >>> _format_fraction(1 / 64), _format_fraction(0.3)
    ('1/64', '0.3')
    """
    whole = round(1 / share)
    return f"1/{whole}" if whole > 1 and math.isclose(whole * share, 1) else f"{share:.3g}"
