"""How much to train: a recipe's batch, steps, learning rate and warm-up for given data.

A recipe is followed to the letter (`follow_exactly`) or fitted to the data (`scale_training`).
Fitting begins with a batch size and a number of images to see, which follow either from `--scale`
(`size_by_scale`) or, without `--recipe`, from the default rule (`size_by_default`). Everything
else is one rule for both:

- learning rate: with the root of the batch, or linearly where the recipe says so;
- steps: as many as the images to see take;
- warm-up: the recipe's share of the steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from patchwords.errors import ConfigError
from patchwords.training.config import RecipeSettings
from patchwords.training.plan import ResolvedSetting
from patchwords.training.recipes.row import Recipe

RECIPE_REASON = "the recipe"
REQUESTED_REASON = "asked for"
MIN_BATCH_SIZE = 32  # no recipe is shrunk below it, except by a lack of images

# How much of the paper's training the defaults keep. Fine-tuning: 100 steps of 512 on 3,303
# flower photos (16 epochs) reach 95 % held out in the authors' notebook (vit_jax_augreg.ipynb), and
# 500 steps (5 epochs) on CIFAR-10 98.6 % against 99.0 % after 10,000 (vit_jax README).
# From scratch the paper has 300 epochs of 1.28 million images and says nothing of smaller data: 100
# epochs are our compromise between accuracy and patience (docs/results.md has what they bring).
FINETUNE_EPOCHS = 20
SCRATCH_EPOCHS = 100
FINETUNE_STEPS_PER_EPOCH = 5  # the batch is halved until an epoch has these
SCRATCH_STEPS_PER_EPOCH = 100
LARGE_DATA_IMAGES = 1_000_000  # from here on, as many images in all as the paper's recipe sees


class TrainingSize(NamedTuple):
    """Batch size and number of images to see, with the reasons shown to the user."""

    batch_size: int
    images_seen: float  # over the whole training, repetitions counted
    batch_reason: str
    steps_reason: str
    origin: str = "recipe"  # what the other reasons call the recipe


def follow_exactly(row: Recipe, requested: RecipeSettings, images: int) -> list[ResolvedSetting]:
    """Return the recipe's own amount of training, whatever the size of the data."""
    batch = requested.batch_size or row.batch_size
    unit, length = row.length
    if unit == "epochs":
        steps, reason = (
            math.ceil(length * images / batch),
            f"{length:g} epochs of {images:,} images",
        )
    else:
        steps, reason = int(length), RECIPE_REASON
    steps, reason = resolve_requested_steps(requested, images, batch) or (steps, reason)
    if requested.warmup_steps is None and row.warmup_steps >= steps:
        raise ConfigError(
            f"--recipe {row.name}: {steps:,} steps ({reason}) end within its warm-up of "
            f"{row.warmup_steps:,}; give --scale auto, which fits it to the data, or --warmup-steps"
        )
    of_batch = "" if batch == row.batch_size else f", for batches of {row.batch_size:,}"
    return [
        _resolve(requested, "batch_size", row.batch_size, RECIPE_REASON),
        ResolvedSetting("steps", steps, reason),
        _resolve(requested, "lr", row.lr, f"{RECIPE_REASON}{of_batch}"),
        _resolve(requested, "warmup_steps", row.warmup_steps, RECIPE_REASON),
    ]


def scale_training(
    row: Recipe, requested: RecipeSettings, images: int, size: TrainingSize
) -> list[ResolvedSetting]:
    """Fit learning rate, steps and warm-up of a recipe to another batch and length.

    Args:
        requested: what the user set; it wins.
        images: size of the training split.
    """
    batch = size.batch_size
    # Rounded first: a scale such as 3,000 / 1,281,167 is not exact.
    steps = max(1, math.ceil(round(size.images_seen / batch, 6)))
    steps, steps_reason = resolve_requested_steps(requested, images, batch) or (
        steps,
        size.steps_reason,
    )
    ratio = batch / row.batch_size
    factors = {"linear": (ratio, ""), "root": (math.sqrt(ratio), "the root of "), "none": (1.0, "")}
    factor, rule = factors[row.scaling]
    change = f"; x {rule}{batch:,}/{row.batch_size:,}"
    if ratio == 1 or row.scaling == "none":
        change = "" if ratio == 1 else "; kept: with less for smaller batches nothing is learned"
    warmup_share = row.warmup_steps / row.steps
    return [
        _resolve(requested, "batch_size", batch, size.batch_reason),
        ResolvedSetting("steps", steps, steps_reason),
        _resolve(
            requested, "lr", float(f"{row.lr * factor:.3g}"), f"{size.origin} {row.lr:g}{change}"
        ),
        _resolve(
            requested,
            "warmup_steps",
            round(warmup_share * steps),
            f"{size.origin} {row.warmup_steps:,}; {warmup_share:.2%} of the steps",
        ),
    ]


def size_by_scale(
    row: Recipe, requested: RecipeSettings, images: int, scale: float
) -> TrainingSize:
    """Size a miniature by `--scale`: the share of the recipe's images seen that it sees.

    The batch is `scale` times the recipe's, rounded down to a power of two.
    """
    share = _format_fraction(scale)
    if requested.scale == "auto":
        share = f"{scale:.3g} ({images:,} of {row.data.images:,} images)"
    goal = row.batch_size * scale
    batch = requested.batch_size or min(
        images, max(MIN_BATCH_SIZE, 2 ** math.floor(math.log2(goal)))
    )
    if batch == goal:
        limit = ""
    elif batch == images:
        limit = ", no more than there are images"
    else:
        limit = f", at least {MIN_BATCH_SIZE}" if goal < MIN_BATCH_SIZE else ", a power of two"
    return TrainingSize(
        batch,
        scale * row.images_seen,
        f"recipe {row.batch_size:,}; x {share}{limit}",
        f"recipe {row.steps:,}; x {_format_fraction(scale)} as many images, in batches of {batch:,}",
    )


def resolve_scale(row: Recipe, requested: RecipeSettings, images: int) -> float:
    """Return `--scale` as a number; auto is the size of the data relative to the recipe's."""
    assert requested.scale is not None
    return min(1.0, images / row.data.images) if requested.scale == "auto" else requested.scale


def size_by_default(
    row: Recipe, requested: RecipeSettings, images: int, from_weights: bool
) -> TrainingSize:
    """Size a training without `--recipe`: shorter than `--scale auto`, with larger batches.

    `--scale auto` keeps the recipe's epochs, 300 on ImageNet, and shrinks the batch as the data
    shrink. The defaults train for a fixed number of epochs instead and halve the batch only until
    an epoch has enough steps; from LARGE_DATA_IMAGES on they see as many images as the recipe.
    """
    epochs, steps_per_epoch = (
        (FINETUNE_EPOCHS, FINETUNE_STEPS_PER_EPOCH)
        if from_weights
        else (SCRATCH_EPOCHS, SCRATCH_STEPS_PER_EPOCH)
    )
    batch = row.batch_size
    while batch > MIN_BATCH_SIZE and batch * steps_per_epoch > images:
        batch //= 2
    published = f"{row.citation}: {row.steps:,} of {row.batch_size:,}"
    large = images >= LARGE_DATA_IMAGES
    return TrainingSize(
        requested.batch_size or min(batch, images),
        row.steps * row.batch_size if large else epochs * images,
        f"{row.citation}: {row.batch_size:,}, halved down to {MIN_BATCH_SIZE} until an epoch has "
        f"{steps_per_epoch} steps",
        f"as many images as {published}" if large else f"{epochs} epochs ({published})",
        f"{row.citation}:",
    )


def resolve_requested_steps(
    requested: RecipeSettings, images: int, batch: int
) -> tuple[int, str] | None:
    """Return the steps of --steps, --epochs or --examples and the reason, or None."""
    if requested.steps is not None:
        return requested.steps, REQUESTED_REASON
    if requested.examples is not None:
        images_seen, length = float(requested.examples), f"{requested.examples:,} examples"
    elif requested.epochs is not None:
        images_seen, length = requested.epochs * images, f"{requested.epochs:g} epochs"
    else:
        return None
    return max(1, math.ceil(images_seen / batch)), f"{length}, {REQUESTED_REASON}"


def _resolve(requested: RecipeSettings, name: str, value: float, reason: str) -> ResolvedSetting:
    """Return the user's value of a setting, or else this one."""
    chosen = getattr(requested, name)
    if chosen is None:
        return ResolvedSetting(name, value, reason)
    return ResolvedSetting(name, chosen, REQUESTED_REASON)


def _format_fraction(share: float) -> str:
    """
    >>> _format_fraction(1 / 64), _format_fraction(0.3)
    ('1/64', '0.3')
    """
    whole = round(1 / share)
    return f"1/{whole}" if whole > 1 and math.isclose(whole * share, 1) else f"{share:.3g}"
