"""Inspection of a model: what it has learned, and where it looks in images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.api.runs import ModelSource, Run, get_source
from patchwords.data.dataset import ImageDataset
from patchwords.data.open import wrap_images
from patchwords.device import DeviceName, PrecisionName, choose_device
from patchwords.evaluation.predictions import load_model_on_device
from patchwords.evaluation.probes.cache import open_feature_cache
from patchwords.evaluation.probes.defaults import DEFAULT_CACHE_GIB
from patchwords.files import check_csv_writable, claim_output_folder
from patchwords.report.explorer.photos import write_explorer_page
from patchwords.report.inspection import Inspection, PhotoReader, open_photos
from patchwords.report.inspection_run import inspect_model, plan_inspection
from patchwords.report.inspection_settings import (
    InspectionSettings,
    check_explorer_options,
    check_nearest_options,
)
from patchwords.report.nearest import open_nearest_search
from patchwords.training.model_setup import parse_image_size
from patchwords.training.setting_layers import apply_settings
from patchwords.weights.pretrained import Pretrained

if TYPE_CHECKING:
    from patchwords.data.decode import ImageLike


@dataclass(frozen=True)
class InspectOptions(InspectionSettings):
    """Settings of an inspection, what computes, and where features are kept."""

    cache: str | None = None  # folder, or none; default: the user's cache folder
    cache_size: float = DEFAULT_CACHE_GIB
    device: DeviceName = "auto"
    precision: PrecisionName = "fp32"
    workers: int | None = None  # processes that decode images; default: as many as are useful


def inspect(
    model: ModelSource,
    images: ImageLike | Iterable[ImageLike] = (),
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Inspection:
    """Inspect what a model has learned, and where it looks in images.

    Args:
        model: a run, a folder or a published name.
        images: files, folders and patterns, or one other data source; or PIL images or arrays.
            Without images, only filters and positions are inspected.
        output: new folder for figures, results.json and arrays.npz; see also `Inspection.save`.
        overwrite: write over what is in `output`.
        settings: flags of `patchwords inspect` by name, as photos=4, layers=[0, -1], query=(3, 7),
            class_name="rose", nearest="photos/", explore="page.html".
    """
    named = {"output": output, "overwrite": overwrite}
    return inspect_with_options(model, images, apply_settings(InspectOptions(), named | settings))


def inspect_with_options(
    model: ModelSource,
    images: ImageLike | Iterable[ImageLike],
    options: InspectOptions,
    *,
    numbers: bool = True,
) -> Inspection:
    """Check the options, inspect, and write what they ask for; without `numbers`, the page alone."""
    named = model.folder if isinstance(model, Run) else model
    source = "" if isinstance(named, Pretrained) else str(named)
    sources = list_images(images)
    check_inspect_options(options, bool(sources), source, numbers)
    examples = open_inspected_images(sources, options.image_column)
    device = choose_device(options.device, options.precision)
    loaded = load_model_on_device(get_source(model), device, options.workers)
    preprocess = loaded.preprocess
    if options.image_size is not None:
        preprocess = replace(preprocess, image_size=parse_image_size(options.image_size))
    photos = PhotoReader(loaded, preprocess)
    search = None
    if options.near.nearest is not None:
        cache = open_feature_cache(options.cache, options.cache_size)
        search = open_nearest_search(options.near, cache, loaded.name)
    plan = None if examples is None else plan_inspection(options, photos)
    claim_output_folder(options.output, options.overwrite)
    if options.page.explore is not None:
        check_csv_writable(options.page.explore, options.overwrite, "--explore")
    inspection = Inspection({}, unreadable=photos.unreadable)
    with device.autocast():
        if numbers:
            inspection = inspect_model(options, photos, examples, plan, search)
        if options.output is not None:
            inspection.save(options.output, overwrite=options.overwrite)
        if examples is not None and options.page.explore is not None:
            inspection.add_page(
                *write_explorer_page(options.page, photos, examples, options.photos)
            )
    return inspection


def check_inspect_options(
    options: InspectOptions, has_images: bool, source: str, numbers: bool
) -> None:
    """Raise ConfigError for options that contradict one another, before anything is opened."""
    check_explorer_options(options.page, has_images, source)
    has_cache = (options.cache, options.cache_size) != (None, DEFAULT_CACHE_GIB)
    check_nearest_options(options.near, has_cache, has_images, numbers)
    options.check(has_images)


def list_images(images: ImageLike | Iterable[ImageLike]) -> list[Any]:
    """List images; a single one, or a source of several, is a list of one."""
    single = isinstance(images, str | Path | bytes | np.ndarray) or hasattr(images, "convert")
    return [images] if single else list(images)  # type: ignore[arg-type]


def open_inspected_images(images: list[Any], image_column: str | None) -> ImageDataset | None:
    """Open paths, patterns and data sources, or images in memory; None without any."""
    if not images:
        return None
    if all(isinstance(image, str | Path) for image in images):
        return open_photos([str(image) for image in images], image_column)
    return wrap_images(images)[0]
