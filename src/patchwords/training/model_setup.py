"""The initial model of a run, new or from weights, fitted to the data; its preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from patchwords.data.dataset import TRAIN, DatasetSplits, ImageDataset
from patchwords.data.decode import read_image_size
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.download import forbid_downloads
from patchwords.errors import DataError
from patchwords.models.build import Model, get_model_family
from patchwords.models.checks import to_height_width
from patchwords.models.config import ViTConfig
from patchwords.models.zoo import create_model, resolve_model
from patchwords.training.config import (
    DURATION_FIELDS,
    FinetuneConfig,
    flatten_config,
)
from patchwords.training.plan import ResolvedSetting
from patchwords.training.recipes.plain import (
    DEFAULT_CPU_BUDGET,
    LARGE_DATA_IMAGES,
    PLAIN,
    PlainRecipeSettings,
    adopt_recipe,
    choose_balance,
    end_choice,
    list_plain_models,
)
from patchwords.weights.adapt import adapt_model
from patchwords.weights.architecture import VIT_SHAPE_FIELDS, find_architecture_name
from patchwords.weights.convert import make_numbered_labels
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained

FindWeights = Callable[[FinetuneConfig, float], list[FinetuneConfig]]  # (config, short side) -> ...

DEFAULT_MODEL = "ViT-B/16"
SIZE_PROBE_IMAGES = 64  # enough to tell photos from thumbnails


@dataclass(frozen=True)
class InitialModel:
    """A model ready to learn, on the CPU."""

    name: str  # canonical
    model: Model
    preprocess: Preprocess
    changes: tuple[str, ...]  # what loading weights reset or resized


def load_starting_weights(config: FinetuneConfig) -> Pretrained | None:
    """The trained model of --weights, if the run starts from one.

    A --model next to it must be the model of the weights, with the same settings. Raises
    WeightsError.
    """
    if config.weights is None:
        return None
    shape = collect_architecture_overrides(config) if config.model else {}
    with forbid_downloads(config.offline):
        return from_pretrained(config.weights, architecture=config.model, **shape)


def collect_architecture_overrides(config: FinetuneConfig) -> dict[str, Any]:
    """Architecture overrides that the user set."""
    asked = {field: getattr(config.model_settings, field) for field in VIT_SHAPE_FIELDS}
    return {field: value for field, value in asked.items() if value is not None}


def choose_model_name(config: FinetuneConfig, origin: Pretrained | None) -> str:
    """Name the model: of the weights, --model, or ViT-B/16; with the overrides of its shape."""
    if origin is not None:
        return origin.architecture or "weights"
    named = resolve_model(config.model or DEFAULT_MODEL)
    shape = [
        f"{field} {value}"
        for field, value in collect_architecture_overrides(config).items()
        if value != getattr(named.config, field, None)
    ]
    return f"{named.name} with {', '.join(shape)}" if shape else named.name


def resolve_vit_width(config: FinetuneConfig, origin: Pretrained | None) -> int | None:
    """Return the width D of the ViT to be trained; None for a ResNet."""
    named = origin.model.config if origin else resolve_model(config.model or DEFAULT_MODEL).config
    if not isinstance(named, ViTConfig):
        return None
    return config.model_settings.width or named.width


def choose_model_family(config: FinetuneConfig, origin: Pretrained | None) -> str:
    """Family of the model, on which the recipe depends: "vit" or "resnet"."""
    named = origin.model if origin is not None else resolve_model(config.model or DEFAULT_MODEL)
    return get_model_family(named.config)


def choose_plain_settings(
    config: FinetuneConfig,
    data: DatasetSplits,
    device: Device,
    find_weights: FindWeights = lambda config, short_side: [],
) -> tuple[list[FinetuneConfig], list[ResolvedSetting]]:
    """Choose what the data decide; -> the settings, cheaper ones for a short budget, and why."""
    train, choices = data.splits[TRAIN], []
    if config.recipe.balance == "auto":
        balance, why = choose_balance(train.count_per_class().tolist())
        config = replace(config, recipe=replace(config.recipe, balance=balance))
        choices.append(ResolvedSetting("balance", balance, why))
    if config.recipe.recipe != PLAIN or config.model is not None or config.weights is not None:
        return [config], choices
    open_choice = isinstance(config.recipe, PlainRecipeSettings)
    if open_choice and len(train) >= LARGE_DATA_IMAGES:
        return [end_choice(adopt_recipe(config, None))], choices  # for large data the paper has one
    flat, alone = flatten_config(config), get_world().size == 1
    if all(flat[name] is None for name in DURATION_FIELDS) and device.type == "cpu" and alone:
        config = replace(config, budget=DEFAULT_CPU_BUDGET)
        why = "time for training and evaluation, the default on a CPU; --budget 1h allows more"
        choices.append(ResolvedSetting("budget", DEFAULT_CPU_BUDGET, why))
    short_side = estimate_short_side(train)
    candidates = find_weights(config, short_side) if open_choice else []
    for row in list_plain_models(len(train), short_side, device.type):
        size = config.model_settings.image_size or (row.image_size,)
        settings = replace(config.model_settings, image_size=size)
        candidates.append(replace(config, model=row.model, model_settings=settings))
    return [end_choice(candidate) for candidate in candidates], choices


def build_initial_model(
    config: FinetuneConfig,
    data: DatasetSplits,
    origin: Pretrained | None,
    classes: Sequence[str] | None = None,
) -> tuple[InitialModel, list[ResolvedSetting]]:
    """Build or adapt the model for these classes, by default those of the data.

    Without any, the head stays zero, as if for one. -> (start, choices made)
    """
    asked = config.model_settings
    classes = tuple(data.classes if classes is None else classes)
    size = parse_image_size(asked.image_size) if asked.image_size else None
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
        return InitialModel(name, model, preprocess, ()), choices
    rows, numbers = map_head_rows(origin.labels, classes) if classes else (None, None)
    model, changes = adapt_model(
        origin.model,
        num_classes=None if rows else max(1, len(classes)),
        image_size=size,
        head_rows=rows,
        seed=config.seed,
        **settings,
    )
    if asked.patch_size not in (None, getattr(origin.model.config, "patch_size", None)):
        name = find_architecture_name(model.config) or f"{name} with patch_size {asked.patch_size}"
    preprocess, choices = choose_preprocess(
        config, data, model.config.image_size, origin.preprocess
    )
    if numbers:
        changes[0] = numbers
    return InitialModel(name, model, preprocess, (*origin.changes, *changes)), choices


def map_head_rows(
    labels: tuple[str, ...], classes: tuple[str, ...]
) -> tuple[list[int] | None, str | None]:
    """Rows of the head in the order of the data's classes; None if the head does not fit.

    Weights that number their classes, as Google's do, are taken to number those of the data if
    they are as many. -> (rows, a note for the user)
    """
    if set(labels) == set(classes):
        return [labels.index(name) for name in classes], None
    count = len(labels)
    if len(classes) == count and labels in {
        make_numbered_labels(count),
        make_numbered_labels(count, "LABEL_"),
    }:
        return list(range(count)), (
            f"the head is kept: the weights number their {count} classes instead of naming them, "
            f"so 0 is taken for {classes[0]}, and so on"
        )
    return None, None


def choose_preprocess(
    config: FinetuneConfig,
    data: DatasetSplits,
    size: tuple[int, int],
    origin: Preprocess | None,
) -> tuple[Preprocess, list[ResolvedSetting]]:
    """Choose how images are resized for evaluation: as set, or as the weights had it.

    Else the short side is resized and the centre cropped, but of images that are no larger than
    the model's input nothing is cut off.
    """
    if origin is not None:
        preprocess, why = replace(origin, image_size=size), "that of the weights"
    elif estimate_short_side(data.splits["train"]) <= max(size):
        preprocess = Preprocess(image_size=size, crop_fraction=1.0)
        why = "the images are not larger than the model's input"
    else:
        preprocess, why = Preprocess(image_size=size), "resize the short side, crop the centre"
    asked = describe_setting_source(config)
    if config.resize is not None:
        preprocess, why = replace(preprocess, resize=config.resize), asked
    if config.crop_fraction is not None:
        if config.crop_fraction != preprocess.crop_fraction:  # else it is as the weights had it
            preprocess = replace(preprocess, crop_fraction=config.crop_fraction, crop_rule="floor")
        why = asked
    what = "squash" if preprocess.resize == "squash" else f"crop {preprocess.crop_fraction:g}"
    return preprocess, [ResolvedSetting("evaluation_resize", what, why)]


def describe_setting_source(config: FinetuneConfig) -> str:
    """Reason of a setting that was set before the recipe filled in the rest."""
    return "asked for" if config.recipe.recipe is None else "the recipe, or asked for"


def estimate_short_side(examples: ImageDataset) -> float:
    """Estimate the median short side in pixels, from the headers of a few images."""
    sides = []
    picks = np.linspace(0, len(examples) - 1, min(SIZE_PROBE_IMAGES, len(examples)))
    for index in np.unique(picks.astype(np.int64)).tolist():
        try:
            sides.append(min(read_image_size(examples.read(index))))
        except (OSError, DataError):
            continue  # the loader names the bad ones
    return float(np.median(sides)) if sides else np.inf


def parse_image_size(size: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of one number or two; raises ConfigError for anything else."""
    return to_height_width(size[0] if len(size) == 1 else size)
