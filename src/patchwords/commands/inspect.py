"""`patchwords inspect SRC [IMAGES...]`: what a model has learned, and where it looks."""

from __future__ import annotations

import io
import json as jsonlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from patchwords.commands.evaluator import DeviceOptions
from patchwords.commands.frozen import CacheOptions
from patchwords.commands.inspect_explorer import ExplorerOptions
from patchwords.commands.inspect_nearest import NearestOptions

if TYPE_CHECKING:
    from patchwords.commands.inspect_parts import InspectionPart
    from patchwords.commands.inspect_photos import PhotoReader


@dataclass(frozen=True)
class InspectCommand:
    """See what a model has learned, and where it looks in photos.

    Without images: the filters that meet the pixels and the similarity of positions. With images,
    for a model that has attention: how far each head looks, single heads, Attention Rollout, what
    speaks for the answer, how alike tokens grow, and, by deletion and insertion, whether these maps
    explain the model's answers at all. With --nearest DATA, for any model: the training images
    that it finds most like each photo. docs/insight.md says what each one is.

    Writes figures (PNG and SVG), results.json and arrays.npz into --output; with --explore a page
    to play with, which opens in a browser without a server.

    Exit code: 0 done, 2 when an image could not be read.

    Example: patchwords inspect runs/photos new/*.jpg --output insight --explore look.html
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]
    """a run folder, a model folder, a file or a published name"""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")] = ()
    """files, folders and patterns, or one other source of images (CSV, parquet, digits, ...)"""
    output: Path | None = None
    """write into this new folder"""
    overwrite: bool = False
    """write over what is in --output"""
    image_size: tuple[int, ...] | None = None
    """one number, or height and width, in pixels; none given: the model's own"""
    photos: int = 8
    """so many photos get maps of their own"""
    distance_images: int = 128
    """so many are averaged over for attention distance and tokens"""
    truth_images: int = 32
    """so many are averaged over for deletion and insertion; 0 leaves these, the slowest, out"""
    baseline: Literal["mean", "blur"] = "mean"
    """what stands where a patch is deleted: the image's mean colour, or the image blurred"""
    layers: tuple[int, ...] = ()
    """whose heads are shown, from 0; none given: the first, the middle and the last"""
    heads: tuple[int, ...] = ()
    """which heads are shown, from 0; none given: all"""
    query: tuple[int, int] | None = None
    """row and column, from 0, of the patch that the heads look from; none given: the class token,
    or, where the model has none, the mean over all patches"""
    class_name: str | None = None
    """what the gradient-weighted rollout explains; none given: the model's answer"""
    image_column: str | None = None
    """column of a CSV or parquet that has the images"""
    json: bool = False
    """print results.json"""
    page: ExplorerOptions = field(default_factory=ExplorerOptions)
    near: NearestOptions = field(default_factory=NearestOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)


@dataclass(frozen=True)
class InspectionPlan:
    """What was asked for, checked before the work."""

    layers: list[int]
    heads: list[int]
    asked_class: int | None
    no_attention: str | None = None  # why nothing can be said of attention


def run_inspect(config: InspectCommand) -> int:
    """Check everything that can be wrong, look, write, say."""
    import sys

    from patchwords.commands.evaluator import claim_output_folder
    from patchwords.commands.inspect_explorer import check_explorer_options as refuse_page
    from patchwords.commands.inspect_explorer import write_explorer_page
    from patchwords.commands.inspect_gather import inspect_model
    from patchwords.commands.inspect_nearest import check_nearest_options as refuse_nearest
    from patchwords.commands.inspect_nearest import open_nearest_search
    from patchwords.commands.inspect_photos import PhotoReader, open_photos
    from patchwords.commands.inspect_summary import print_inspection
    from patchwords.errors import ConfigError
    from patchwords.evaluate.subject import load_model_on_device
    from patchwords.files import check_csv_writable

    if config.output is None and config.page.explore is None:
        raise ConfigError(
            "nothing to do: --output FOLDER writes figures and numbers, --explore PAGE.html a page"
        )
    refuse_page(config.page, bool(config.images), config.source)
    refuse_nearest(config.near, config.cache, bool(config.images), config.output is not None)
    check_inspection_counts(config)
    examples = open_photos(config.images, config.image_column) if config.images else None
    search = open_nearest_search(config.near, config.cache, config.source)
    device = config.where.choose()
    subject = load_model_on_device(config.source, device, config.where.workers)
    size = config.image_size
    if size is not None:
        from patchwords.train.start import parse_image_size

        size = parse_image_size(size)
    seen = subject.preprocess if size is None else replace(subject.preprocess, image_size=size)
    photos = PhotoReader(subject, seen)
    plan = plan_inspection(config, photos) if examples is not None else None
    folder = claim_output_folder(config.output, config.overwrite)
    if config.page.explore is not None:
        check_csv_writable(config.page.explore, config.overwrite, "--explore")
    results, said = {}, ""
    with device.autocast():
        if folder is not None:
            found = inspect_model(config, photos, examples, plan, search)
            write_inspection(folder, found)
            results = found.results
        if examples is not None and config.page.explore is not None:
            page, said = write_explorer_page(config.page, photos, examples, config.photos)
            results = results | {"page": str(page)}
    for path, reason in photos.bad.items():
        print(f"patchwords: {path}: {reason}", file=sys.stderr)
    if config.json:
        print(jsonlib.dumps(results))
        return 2 if photos.bad else 0
    if folder is not None:
        print_inspection(results, folder)
    if said:
        print(f"page to open in a browser: {config.page.explore} ({said})")
    return 2 if photos.bad else 0


def check_inspection_counts(config: InspectCommand) -> None:
    from patchwords.errors import ConfigError

    least = {"--photos": 1, "--distance-images": 1, "--truth-images": 0}
    for flag, value in zip(
        least, (config.photos, config.distance_images, config.truth_images), strict=True
    ):
        if value < least[flag]:
            raise ConfigError(f"{flag} {value} must be at least {least[flag]}")
    if config.image_size is not None and len(config.image_size) not in {1, 2}:
        raise ConfigError(f"--image-size {config.image_size}: one number, or height and width")
    if config.images:
        return
    for flag in list_attention_flags(config):
        raise ConfigError(f"{flag} is about images: name some after SRC")


def list_attention_flags(config: InspectCommand) -> list[str]:
    """The flags given that only a model with attention has an answer to."""
    given = {
        "--query": config.query is not None,
        "--class-name": config.class_name is not None,
        "--layers": bool(config.layers),
        "--heads": bool(config.heads),
    }
    return [flag for flag, asked in given.items() if asked]


def plan_inspection(config: InspectCommand, photos: PhotoReader) -> InspectionPlan:
    """Raises ConfigError for what this model cannot do with images; nothing is computed.

    Without attention it can find the nearest images, if no more than that is asked for.
    """
    import torch

    from patchwords.errors import ConfigError, did_you_mean
    from patchwords.inspect.attention import check_heads, find_patch_index
    from patchwords.model.images import check_layer_indices

    try:
        vit = photos.attending()
    except ConfigError as error:
        alone = config.near.nearest is not None and config.page.explore is None
        if alone and not list_attention_flags(config):
            return InspectionPlan([], [], None, str(error))
        raise
    height, width = photos.preprocess.image_size
    grid = vit.grid(torch.empty(1, vit.config.channels, height, width))
    if config.query is not None:
        find_patch_index(config.query, grid)
    count, labels = vit.config.layers, photos.subject.source.labels
    layers = check_layer_indices(list(config.layers), count) or sorted({0, count // 2, count - 1})
    heads = check_heads(config.heads, vit.config.heads) or list(range(vit.config.heads))
    if config.class_name is None:
        return InspectionPlan(layers, heads, None)
    if config.class_name not in labels:
        hint = did_you_mean(config.class_name, labels) if labels else "; it was trained without any"
        raise ConfigError(f"--class-name {config.class_name!r}: the model has no such class{hint}")
    return InspectionPlan(layers, heads, labels.index(config.class_name))


def write_inspection(folder: Path, found: InspectionPart) -> None:
    import numpy as np

    from patchwords.files import write_atomically

    text = jsonlib.dumps(found.results, indent=2, ensure_ascii=False)
    write_atomically(folder / "results.json", text + "\n")
    arrays = io.BytesIO()
    np.savez_compressed(arrays, allow_pickle=False, **found.arrays)
    write_atomically(folder / "arrays.npz", arrays.getvalue())
    for name, content in found.figures.items():
        write_atomically(folder / name, content)
