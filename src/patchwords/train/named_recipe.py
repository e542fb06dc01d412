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
from patchwords.train.choice import Choice
from patchwords.train.config import DURATIONS, FinetuneConfig, RecipeSettings
from patchwords.train.recipe_augreg import AUGREG
from patchwords.train.recipe_finetune import FINETUNE
from patchwords.train.recipe_pretrain import PRETRAIN
from patchwords.train.recipe_row import Row
from patchwords.train.settings import flatten, unflatten

Config = TypeVar("Config", bound=FinetuneConfig)

ROWS = {row.name: row for row in (*PRETRAIN, *AUGREG, *FINETUNE)}
SMALLEST_BATCH = 32
USUAL_LR = {"sgd": 0.03, "adamw": 1e-4}  # to try first, where a recipe has none
# What fine-tuning does without having a flag for it.
FINETUNING: Mapping[str, Any] = {"objective": "supervised", "loss": "softmax", "head": "linear"}
FROM_ROW = "the recipe"
STOCHASTIC = ("dropout", "drop_path")
SHOWN_ELSEWHERE = {  # with the model, the data, and what is learned
    *("model", "image_size", "resize", "crop_fraction"),
    *("objective", "loss", "head", "target", "mask_ratio"),
}


def find(name: str) -> Row:
    """Raises ConfigError for a name that is none."""
    row = ROWS.get(name.lower())
    if row is None:
        near = did_you_mean(name, ROWS)
        raise ConfigError(
            f"unknown recipe {name!r}{near or '; `patchwords recipes` lists the names'}"
        )
    return row


def matching(pattern: str) -> list[Row]:
    """The recipes whose names the glob matches."""
    return [row for name, row in ROWS.items() if fnmatchcase(name, pattern.lower())]


def preset(config: Config, name: str, from_weights: bool = False) -> Config:
    """The config with all that the recipe sets and `--scale` leaves alone.

    What somebody else sets is to be written over it: the command line does so. A recipe's model is
    not taken where the run starts `from_weights`, which have one. Raises ConfigError for an
    unknown name, and where the recipe needs what the verb has not.
    """
    row = find(name)
    model = {} if row.model is None or from_weights else {"model": row.model}
    return unflatten(config, {"recipe": row.name, **model, **_settings(row, config)})


def fill_from_row(
    config: FinetuneConfig, images: int, from_weights: bool, family: str = "vit"
) -> tuple[FinetuneConfig, list[Choice]]:
    """The config with what the recipe sets in the place of every `None`, and the reasons."""
    asked = config.recipe
    assert asked.recipe is not None
    row = find(asked.recipe)
    if row.finetunes and not from_weights:
        raise ConfigError(
            f"--recipe {row.name} starts from trained weights: "
            "patchwords finetune DATA --weights WEIGHTS"
        )
    settings, given = _settings(row, config), flatten(config)
    refuse_other_optimizer(asked, settings["optimizer"], row.name)
    size = _exact(row, asked, images) if asked.scale is None else _scaled(row, asked, images)
    sized = dict.fromkeys(DURATIONS) | {choice.name: choice.value for choice in size.choices}
    missing = {name: value for name, value in settings.items() if given[name] is None}
    if family == "resnet":  # it has no place for them, and so does what a rate of 0 says
        absent = [name for name in STOCHASTIC if settings.get(name) == 0 and not given[name]]
        missing |= dict.fromkeys(absent)
        settings = {name: value for name, value in settings.items() if name not in absent}
    settled = {"recipe": row.name, "scale": size.scale}
    filled = unflatten(config, {**missing, **sized, **settled})
    now = flatten(filled)
    choices = [Choice("recipe", row.name, describe(row)), *size.choices]
    for name, value in settings.items():
        own = _same(now[name], value)
        if not own or name not in SHOWN_ELSEWHERE:
            why = FROM_ROW if own else f"asked for; {row.name}: {_said(value)}"
            choices.append(Choice(name, now[name], why))
    return filled, choices


def describe(row: Row) -> str:
    """Where it is from and what it is for, in a few words."""
    return f"{row.source}: {row.model or 'any model'}, {row.data.name}"


def refuse_other_optimizer(asked: RecipeSettings, optimizer: str, source: str) -> None:
    """A learning rate belongs to its optimizer; raises ConfigError."""
    if asked.optimizer not in {None, optimizer} and asked.lr is None:
        raise ConfigError(
            f"--optimizer {asked.optimizer}: {source} has a learning rate for {optimizer} only; "
            f"give --lr, too ({USUAL_LR[asked.optimizer]:g} is a usual start)"
        )


class Size(NamedTuple):
    """How much training: batch_size, steps, lr and warmup_steps."""

    scale: float | None
    choices: list[Choice]


def _exact(row: Row, asked: RecipeSettings, images: int) -> Size:
    """As the row says, whatever the data."""
    batch = asked.batch_size or row.batch_size
    kind, amount = row.length
    if kind == "epochs":
        steps, why = math.ceil(amount * images / batch), f"{amount:g} epochs of {images:,} images"
    else:
        steps, why = int(amount), FROM_ROW
    steps, why = steps_asked_for(asked, images, batch) or (steps, why)
    if asked.warmup_steps is None and row.warmup_steps >= steps:
        raise ConfigError(
            f"--recipe {row.name}: {steps:,} steps ({why}) end within its warm-up of "
            f"{row.warmup_steps:,}; give --scale auto, which fits it to the data, or --warmup-steps"
        )
    other = "" if batch == row.batch_size else f", for batches of {row.batch_size:,}"
    return Size(
        None,
        [
            _choice(asked, "batch_size", row.batch_size, FROM_ROW),
            Choice("steps", steps, why),
            _choice(asked, "lr", row.lr, f"{FROM_ROW}{other}"),
            _choice(asked, "warmup_steps", row.warmup_steps, FROM_ROW),
        ],
    )


def _scaled(row: Row, asked: RecipeSettings, images: int) -> Size:
    """A miniature; every change is said."""
    if asked.scale == "auto":
        scale = min(1.0, images / row.data.images)
        share = f"{scale:.3g} ({images:,} of {row.data.images:,} images)"
    else:
        assert asked.scale is not None
        scale, share = asked.scale, _fraction(asked.scale)
    goal = row.batch_size * scale
    batch = asked.batch_size or min(images, max(SMALLEST_BATCH, 2 ** math.floor(math.log2(goal))))
    least = f", at least {SMALLEST_BATCH}" if goal < SMALLEST_BATCH else ", a power of two"
    if batch == images:
        least = ", no more than there are images"
    why_batch = f"recipe {row.batch_size:,}; x {share}{'' if batch == goal else least}"
    seen = f"recipe {row.steps:,}; x {_fraction(scale)} as many images, in batches of {batch:,}"
    # Rounded first: a scale such as 3,000 / 1,281,167 is not exact.
    steps = math.ceil(round(scale * row.images_seen / batch, 6))
    steps, why_steps = steps_asked_for(asked, images, batch) or (steps, seen)
    ratio = batch / row.batch_size
    factor, how = (ratio, "") if row.scaling == "linear" else (math.sqrt(ratio), "the root of ")
    lr = float(f"{row.lr * factor:.3g}")
    why_lr = f"recipe {row.lr:g}; x {how}{batch:,}/{row.batch_size:,}"
    warmup = round(row.warmup_steps / row.steps * steps)
    why_warmup = f"recipe {row.warmup_steps:,}; {row.warmup_steps / row.steps:.2%} of the steps"
    return Size(
        scale,
        [
            _choice(asked, "batch_size", batch, why_batch),
            Choice("steps", steps, why_steps),
            _choice(asked, "lr", lr, why_lr),
            _choice(asked, "warmup_steps", warmup, why_warmup),
        ],
    )


def _choice(asked: RecipeSettings, name: str, value: float, why: str) -> Choice:
    """The value that somebody asked for, or the recipe's."""
    own = getattr(asked, name)
    return Choice(name, value, why) if own is None else Choice(name, own, "asked for")


def steps_asked_for(asked: RecipeSettings, images: int, batch: int) -> tuple[int, str] | None:
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


def _settings(row: Row, config: FinetuneConfig) -> dict[str, Any]:
    """Those that this verb has flags for; raises ConfigError where one is needed that it has not.

    What the verb does in any case needs no flag.
    """
    known = flatten(config)
    for name, value in row.settings.items():
        if name not in known and not _same(FINETUNING.get(name), value):
            raise ConfigError(
                f"--recipe {row.name} needs --{name.replace('_', '-')} {value}, which "
                f"{config.verb} does not have; patchwords pretrain has"
            )
    return {name: value for name, value in row.settings.items() if name in known}


def _same(ours: Any, theirs: Any) -> bool:
    """Whether they are one setting; 224 pixels are 224x224."""
    return bool(ours == theirs) or (isinstance(theirs, tuple) and ours == theirs * 2)


def _said(value: Any) -> str:
    return " ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def _fraction(share: float) -> str:
    """
    >>> _fraction(1 / 64), _fraction(0.3)
    ('1/64', '0.3')
    """
    whole = round(1 / share)
    return f"1/{whole}" if whole > 1 and math.isclose(whole * share, 1) else f"{share:.3g}"
