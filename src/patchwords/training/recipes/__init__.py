"""What is done without `--recipe`: the paper's rows, shrunk to the size of the data at hand.

Rows: Table 3 (pre-training, Appendix B.1), Table 4 (fine-tuning, Appendix B.1.1) and Appendix
B.1.2 (masked patches) of arXiv 2010.11929; named_recipe.py has them to the letter. Table 4 has no
warm-up: 500 steps for CIFAR and ImageNet are from vit_jax/configs/common.py, 100 of 500 for Pets
and Flowers from big_vision configs/transfer.py.
Table 3 has no ResNet trained on ImageNet alone: that row is big_vision configs/bit_i1k.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeVar

from patchwords.errors import ConfigError, did_you_mean
from patchwords.training.config import (
    DURATION_FIELDS,
    FinetuneConfig,
    MachineSettings,
    RecipeSettings,
    flatten_config,
    unflatten_config,
)
from patchwords.training.plan import ResolvedSetting
from patchwords.training.recipes.augreg import AUGREG_RECIPES
from patchwords.training.recipes.finetune import FINETUNE_RECIPES
from patchwords.training.recipes.pretrain import PRETRAIN_RECIPES
from patchwords.training.recipes.row import Recipe

# `--recipe NAME`: a published recipe to the letter, or scaled down by `--scale`.
#
# What a row says is taken from it as it stands, but for what somebody sets. `--scale S` makes a
# miniature, which sees S times as many images as the recipe sees on its own data:
#
# - batch: S times the row's, rounded down to a power of two, at least 32;
# - learning rate: with the root of the batch, or linearly where the row says so;
# - steps: as many as the images take;
# - warm-up: the same share of the steps.


RecipeConfigT = TypeVar("RecipeConfigT", bound=FinetuneConfig)

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


@dataclass(frozen=True)
class DefaultRecipe:
    """One row: the settings, and the amount of training that the paper gave it."""

    source: str
    optimizer: Literal["sgd", "adamw"]
    schedule: Literal["cosine", "linear"]
    lr: float
    batch_size: int
    weight_decay: float
    warmup: float  # share of all steps
    paper_steps: int
    paper_images: int  # size of the training set that the row was written for
    scaling: Literal["root", "linear"] = "root"  # of the learning rate with the batch


# "from scratch" is Table 3's ImageNet row: 300 epochs of 1.28 million images in batches of 4,096
# are 93,750 steps, 10,000 of them warm-up. Its dropout of 0.1 is in `dropout`.
SCRATCH_DEFAULT = DefaultRecipe(
    source="Table 3, ViT-* on ImageNet",
    optimizer="adamw",
    schedule="cosine",
    lr=3e-3,
    batch_size=4096,
    weight_decay=0.3,
    warmup=10_000 / 93_750,
    paper_steps=93_750,
    paper_images=1_281_167,
)

# 90 epochs of 1.28 million images. Its weight decay of 1e-4 * 4096 / 256 is not multiplied by the
# learning rate of 0.1 * 4096 / 256 there; ours is, so it is the quotient, at every batch.
SCRATCH_RESNET_DEFAULT = DefaultRecipe(
    source="big_vision configs/bit_i1k.py",
    optimizer="sgd",
    schedule="cosine",
    lr=1.6,
    batch_size=4096,
    weight_decay=1e-3,
    warmup=1_000 / 28_151,
    paper_steps=28_151,
    paper_images=1_281_167,
    scaling="linear",
)


# 14 epochs of 303 million images. The weight decay is not given there: that of Table 3 for JFT.
MASKED_DEFAULT = DefaultRecipe(
    source="Appendix B.1.2, masked patches",
    optimizer="adamw",
    schedule="cosine",
    lr=2e-4,
    batch_size=4096,
    weight_decay=0.1,
    warmup=10_000 / 1_000_000,
    paper_steps=1_000_000,
    paper_images=303_000_000,
)


def _finetune_default(data: str, steps: int, images: int, warmup: float) -> DefaultRecipe:
    # 0.01 stands in the learning-rate grid of every row of Table 4.
    return DefaultRecipe(f"Table 4, {data}", "sgd", "cosine", 0.01, 512, 0.0, warmup, steps, images)


# Smallest data first; a data set takes the first row that is at least as large, else the last.
FINETUNE_DEFAULTS = (
    _finetune_default("Pets and Flowers-102", 500, 20_000, 0.2),
    _finetune_default("CIFAR", 10_000, 500_000, 0.05),
    _finetune_default("ImageNet", 20_000, 1_281_167, 0.025),
)

# Table 3's dropout from scratch; of fine-tuning, that of the official vit_jax/configs/models.py.
# R50+ViT-L/16 is not there: hybrids are trained as their ViT (Sec. 4.1). ResNets have no dropout.
SCRATCH_DROPOUT = 0.1
FINETUNE_DROPOUT = {
    "ViT-L/16": 0.1,
    "ViT-H/14": 0.1,
    "R50+ViT-B/16": 0.1,
    "R50+ViT-L/16": 0.1,
    "R50+ViT-L/32": 0.1,
}

# How much of the paper's training the defaults keep. Fine-tuning: 100 steps of 512 on 3,303
# flower photos (16 epochs) reach 95 % held out in the authors' notebook (vit_jax_augreg.ipynb), and
# 500 steps (5 epochs) on CIFAR-10 98.6 % against 99.0 % after 10,000 (vit_jax README).
# From scratch the paper has 300 epochs of 1.28 million images and says nothing of smaller data: 100
# epochs are our compromise between accuracy and patience (docs/results.md has what 20 bring).
FINETUNE_EPOCHS = 20
SCRATCH_EPOCHS = 100
LARGE_DATA_IMAGES = 1_000_000  # from here on, as many images in all as the paper's row

MIN_DEFAULT_BATCH = 32
MIN_STEPS_PER_EPOCH = {"finetune": 5, "scratch": 100}  # the batch shrinks until an epoch has these


def choose_default_recipe(
    from_weights: bool, images: int, family: str = "vit", objective: str = "supervised"
) -> DefaultRecipe:
    """The row for this start and this size of data; only from scratch do ResNets have their own."""
    if objective == "masked":
        return MASKED_DEFAULT
    if not from_weights:
        return SCRATCH_RESNET_DEFAULT if family == "resnet" else SCRATCH_DEFAULT
    return next(
        (row for row in FINETUNE_DEFAULTS if images <= row.paper_images), FINETUNE_DEFAULTS[-1]
    )


def fill_recipe_settings(
    config: FinetuneConfig,
    *,
    images: int,
    from_weights: bool,
    model: str,
    family: str = "vit",
    objective: str = "supervised",
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """The config with every `None` of its recipe replaced, and the reasons.

    Args:
        images: size of the training split.
        from_weights: whether the run starts from trained weights.
        model: canonical model name; the dropout of fine-tuning depends on it.
        family: "vit" (hybrids, too) or "resnet", as in models/build.py.
        objective: "supervised" or "masked"; Appendix B.1.2 has a row of its own for masked patches.
    """
    if config.recipe.recipe is not None:
        done, choices = fill_from_named_recipe(config, images, from_weights, family)
    else:
        row = choose_default_recipe(from_weights, images, family, objective)
        done, choices = _shrink_default(row, config, images, from_weights)
    steps, batch = done.recipe.steps, done.recipe.batch_size
    assert steps is not None
    assert batch is not None
    done = replace(done, machine=_fill_intervals(config.machine, steps, batch, images))
    said = "dropout" in {choice.name for choice in choices}
    if said or family == "resnet":  # it has no place for dropout
        return done, choices
    dropout, why = _default_dropout(config, from_weights, model, objective)
    choices.append(ResolvedSetting("dropout", dropout, why))
    return replace(done, model_settings=replace(done.model_settings, dropout=dropout)), choices


def _shrink_default(
    row: DefaultRecipe, config: FinetuneConfig, images: int, from_weights: bool
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """The row for as many images as there are."""
    asked = config.recipe
    check_recipe_optimizer(asked, row.optimizer, row.source)
    batch = asked.batch_size or _default_batch_size(row, images, from_weights)
    steps, why_steps = _default_steps(row, asked, images, batch, from_weights)
    scale, shrunk = _scale_learning_rate(row, batch)
    filled = replace(
        asked,
        batch_size=batch,
        steps=steps,
        epochs=None,
        examples=None,
        optimizer=asked.optimizer or row.optimizer,
        schedule=asked.schedule or row.schedule,
        lr=asked.lr if asked.lr is not None else float(f"{row.lr * scale:.3g}"),
        warmup_steps=(
            asked.warmup_steps if asked.warmup_steps is not None else round(row.warmup * steps)
        ),
        weight_decay=asked.weight_decay if asked.weight_decay is not None else row.weight_decay,
    )
    reasons = {
        "batch_size": f"{row.source}: {row.batch_size:,}, halved down to {MIN_DEFAULT_BATCH} until an "
        f"epoch has {MIN_STEPS_PER_EPOCH[_start_kind(from_weights)]} steps",
        "steps": why_steps,
        "optimizer": row.source,
        "schedule": row.source,
        "lr": f"{row.source}: {row.lr:g}{shrunk}",
        "warmup_steps": f"{row.warmup:.1%} of the steps, as {row.source}",
        "weight_decay": f"{row.source}; decoupled, kernels only",
    }
    choices = [
        ResolvedSetting(
            name, getattr(filled, name), "asked for" if getattr(asked, name) is not None else why
        )
        for name, why in reasons.items()
    ]
    return replace(config, recipe=filled), choices


def _start_kind(from_weights: bool) -> str:
    return "finetune" if from_weights else "scratch"


def _default_batch_size(row: DefaultRecipe, images: int, from_weights: bool) -> int:
    """The paper's batch, halved until an epoch has a few steps; never more than there are."""
    batch = row.batch_size
    while (
        batch > MIN_DEFAULT_BATCH
        and batch * MIN_STEPS_PER_EPOCH[_start_kind(from_weights)] > images
    ):
        batch //= 2
    return min(batch, images)


def _scale_learning_rate(row: DefaultRecipe, batch: int) -> tuple[float, str]:
    """The factor on the row's learning rate for another batch than the row's, and in words."""
    ratio = batch / row.batch_size
    if ratio == 1:
        return 1.0, ""
    if row.scaling == "linear":
        return ratio, f"; x{ratio:.3g}, as the batch: {batch}/{row.batch_size}"
    root = math.sqrt(ratio)
    return root, f"; x{root:.3g}, the root of {batch}/{row.batch_size}"


def _default_steps(
    row: DefaultRecipe, asked: RecipeSettings, images: int, batch: int, from_weights: bool
) -> tuple[int, str]:
    asked_for = resolve_requested_steps(asked, images, batch)
    if asked_for is not None:
        return asked_for
    if images >= LARGE_DATA_IMAGES:
        return math.ceil(row.paper_steps * row.batch_size / batch), row.source
    epochs = FINETUNE_EPOCHS if from_weights else SCRATCH_EPOCHS
    paper = f"{row.source}: {row.paper_steps:,} of {row.batch_size:,}"
    return max(1, math.ceil(epochs * images / batch)), f"{epochs} epochs ({paper})"


def _default_dropout(
    config: FinetuneConfig, from_weights: bool, model: str, objective: str
) -> tuple[float, str]:
    if config.model_settings.dropout is not None:
        return config.model_settings.dropout, "asked for"
    if objective == "masked":
        return 0.0, "Table 3, JFT-300M; Appendix B.1.2 gives none"
    if not from_weights:
        return SCRATCH_DROPOUT, SCRATCH_DEFAULT.source
    dropout = FINETUNE_DROPOUT.get(model.split(" with ", maxsplit=1)[0], 0.0)
    return dropout, "the official fine-tuning code (vit_jax/configs/models.py)"


def _fill_intervals(
    machine: MachineSettings, steps: int, batch: int, images: int
) -> MachineSettings:
    """When to log, to evaluate and to save, where nobody said."""
    epoch = max(1, images // batch)
    evaluate = machine.eval_every or min(steps, max(epoch, math.ceil(steps / 30)))
    return replace(
        machine,
        log_every=machine.log_every or max(1, min(50, steps // 100)),
        eval_every=evaluate,
        save_every=machine.save_every or evaluate,
    )
