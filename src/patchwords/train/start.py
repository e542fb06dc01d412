"""Where a run starts: the model, new or from weights, fitted to the data; its preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from patchwords.data.decode import image_size
from patchwords.data.examples import Data, Examples
from patchwords.data.preprocess import Preprocess
from patchwords.errors import DataError
from patchwords.model.checks import height_width
from patchwords.model.create import create_model
from patchwords.model.family import Model, family_of
from patchwords.model.variants import resolve
from patchwords.train.config import FinetuneConfig
from patchwords.train.recipes import Choice
from patchwords.weights.adapt import adapt
from patchwords.weights.architecture import SHAPE
from patchwords.weights.foreign import numbered
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained

DEFAULT_MODEL = "ViT-B/16"
IMAGES_LOOKED_AT = 64  # to tell photos from thumbnails


@dataclass(frozen=True)
class Start:
    """A model ready to learn, on the CPU."""

    name: str  # canonical
    model: Model
    preprocess: Preprocess
    changes: tuple[str, ...]  # what loading weights reset or resized


def load_origin(config: FinetuneConfig) -> Pretrained | None:
    """The trained model of --weights, if the run starts from one.

    A --model beside it, with settings that make another model of that name, has to be what they
    are. Raises WeightsError.
    """
    if config.weights is None:
        return None
    shape = asked_shape(config) if config.model else {}
    return from_pretrained(config.weights, architecture=config.model, **shape)


def asked_shape(config: FinetuneConfig) -> dict[str, Any]:
    """The settings that make another model of a name, as far as somebody made them."""
    asked = {field: getattr(config.model_settings, field) for field in SHAPE}
    return {field: value for field, value in asked.items() if value is not None}


def choose_model_name(config: FinetuneConfig, origin: Pretrained | None) -> str:
    """That of the weights, or --model, or ViT-B/16, and by what its shape differs from the name."""
    if origin is not None:
        return origin.architecture or "weights"
    named = resolve(config.model or DEFAULT_MODEL)
    shape = [
        f"{field} {value}"
        for field, value in asked_shape(config).items()
        if value != getattr(named.config, field, None)
    ]
    return f"{named.name} with {', '.join(shape)}" if shape else named.name


def choose_family(config: FinetuneConfig, origin: Pretrained | None) -> str:
    """That of the weights, or of --model: "vit" or "resnet"; the recipe depends on it."""
    named = origin.model if origin is not None else resolve(config.model or DEFAULT_MODEL)
    return family_of(named.config)


def prepare_start(
    config: FinetuneConfig,
    data: Data,
    origin: Pretrained | None,
    classes: Sequence[str] | None = None,
) -> tuple[Start, list[Choice]]:
    """Build or adapt the model for these classes, by default those of the data.

    Without any, the head stays zero, as if for one. -> (start, choices made)
    """
    asked = config.model_settings
    classes = tuple(data.classes if classes is None else classes)
    size = size_asked(asked.image_size) if asked.image_size else None
    settings = {
        name: value
        for name, value in vars(asked).items()
        if name != "image_size" and value is not None
    }
    name = choose_model_name(config, origin)
    if origin is None:
        model = create_model(
            config.model or DEFAULT_MODEL,
            num_classes=max(1, len(classes)),
            image_size=size,
            seed=config.seed,
            **settings,
        )
        preprocess, choices = choose_preprocess(config, data, model.config.image_size, None)
        return Start(name, model, preprocess, ()), choices
    rows, numbers = rows_of_head(origin.labels, classes) if classes else (None, None)
    model, changes = adapt(
        origin.model,
        num_classes=None if rows else max(1, len(classes)),
        image_size=size,
        head_rows=rows,
        seed=config.seed,
        **settings,
    )
    preprocess, choices = choose_preprocess(
        config, data, model.config.image_size, origin.preprocess
    )
    if numbers:
        changes[0] = numbers
    return Start(name, model, preprocess, (*origin.changes, *changes)), choices


def rows_of_head(
    labels: tuple[str, ...], classes: tuple[str, ...]
) -> tuple[list[int] | None, str | None]:
    """Where the head's labels stand in the order of the data's classes; None if it has to go.

    Weights that number their classes, as Google's do, are taken to number those of the data if
    they are as many. -> (rows, what a person should know of that)
    """
    if set(labels) == set(classes):
        return [labels.index(name) for name in classes], None
    count = len(labels)
    if len(classes) == count and labels in {numbered(count), numbered(count, "LABEL_")}:
        return list(range(count)), (
            f"the head is kept: the weights number their {count} classes instead of naming them, "
            f"so 0 is taken for {classes[0]}, and so on"
        )
    return None, None


def choose_preprocess(
    config: FinetuneConfig,
    data: Data,
    size: tuple[int, int],
    origin: Preprocess | None,
) -> tuple[Preprocess, list[Choice]]:
    """How images are brought to size for evaluation: as asked, or as the weights had it.

    Else the short side is resized and the centre cropped, but of images that are no larger than
    the model's input nothing is cut off.
    """
    if origin is not None:
        preprocess, why = replace(origin, image_size=size), "that of the weights"
    elif typical_side(data.splits["train"]) <= max(size):
        preprocess = Preprocess(image_size=size, crop_fraction=1.0)
        why = "the images are not larger than the model's input"
    else:
        preprocess, why = Preprocess(image_size=size), "resize the short side, crop the centre"
    asked = who_said(config)
    if config.resize is not None:
        preprocess, why = replace(preprocess, resize=config.resize), asked
    if config.crop_fraction is not None:
        preprocess, why = replace(preprocess, crop_fraction=config.crop_fraction), asked
    what = "squash" if preprocess.resize == "squash" else f"crop {preprocess.crop_fraction:g}"
    return preprocess, [Choice("evaluation_resize", what, why)]


def who_said(config: FinetuneConfig) -> str:
    """Of a setting that is not open any more when the recipe is filled in."""
    return "asked for" if config.recipe.recipe is None else "the recipe, or asked for"


def typical_side(examples: Examples) -> float:
    """Median short side of a few images, from their headers, in pixels."""
    sides = []
    picks = np.linspace(0, len(examples) - 1, min(IMAGES_LOOKED_AT, len(examples)))
    for index in np.unique(picks.astype(np.int64)).tolist():
        try:
            sides.append(min(image_size(examples.read(index))))
        except (OSError, DataError):
            continue  # the loader names the bad ones
    return float(np.median(sides)) if sides else np.inf


def size_asked(size: tuple[int, ...]) -> tuple[int, int]:
    """Height and width, of one number or two; raises ConfigError for what is neither."""
    return height_width(size[0] if len(size) == 1 else size)
