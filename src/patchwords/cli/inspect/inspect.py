"""`patchwords inspect SRC [IMAGES...]`: what a model has learned, and where it looks."""

from __future__ import annotations

import contextlib
import io
import json as jsonlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress

from patchwords.cli.inspect.explorer import ExplorerOptions
from patchwords.cli.inspect.nearest import NearestOptions, NearestSearch, inspect_nearest
from patchwords.cli.options import CacheOptions, DeviceOptions
from patchwords.errors import ConfigError
from patchwords.report.format import format_against_random, pluralise

if TYPE_CHECKING:
    from torch import Tensor

    from patchwords.data.dataset import ImageDataset
    from patchwords.report.inspection import Inspection, PhotoReader


@dataclass(frozen=True)
class InspectCommand:
    """Show what a model has learned, and where it looks in photos.

    Without images: the filters of the patch embedding and the similarity of position embeddings.
    With images, for a model with attention: how far each head looks, single heads, Attention
    Rollout, what supports the answer, how similar tokens become over depth, and, by deletion and
    insertion, whether these maps explain the model's answers at all. With --nearest DATA, for any
    model: the training images most similar to each photo. docs/insight.md explains each of them.

    With --explore: a page that opens in a browser without a server.

    Exit code: 0 done, 2 if an image could not be read.

    Example: patchwords inspect runs/photos new/*.jpg --output insight --explore look.html
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]
    """run folder, model folder, file of weights or published name"""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")] = ()
    """files, folders and patterns, or one other source of images (CSV, parquet, digits, ...)"""
    output: Path | None = None
    """new folder for figures (PNG and SVG), results.json and arrays.npz; default: print only"""
    overwrite: bool = False
    """overwrite the files in --output"""
    image_size: tuple[int, ...] | None = None
    """image size in pixels: one number, or height and width; default: the model's own"""
    photos: int = 8
    """number of photos that get maps of their own"""
    distance_images: int = 128
    """number of images averaged for attention distance and token similarity"""
    truth_images: int = 32
    """number of images averaged for deletion and insertion, the slowest part; 0: skip it"""
    baseline: Literal["mean", "blur"] = "mean"
    """what replaces a deleted patch: the image's mean colour, or the blurred image"""
    layers: tuple[int, ...] = ()
    """layers whose heads are shown, counted from 0; default: the first, the middle and the last"""
    heads: tuple[int, ...] = ()
    """heads to show, counted from 0; default: all"""
    query: tuple[int, int] | None = None
    """row and column, counted from 0, of the patch that the heads attend from; default: the class
    token, or the mean over all patches if the model has none"""
    class_name: str | None = None
    """class that the gradient-weighted rollout explains; default: the predicted class"""
    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    json: bool = False
    """print results.json"""
    page: ExplorerOptions = field(default_factory=ExplorerOptions)
    near: NearestOptions = field(default_factory=NearestOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)


@dataclass(frozen=True)
class InspectionPlan:
    """The checked settings of an inspection."""

    layers: list[int]
    heads: list[int]
    class_index: int | None
    no_attention: str | None = None  # why the model has no attention maps


def run_inspect(config: InspectCommand) -> int:
    """Check the settings, inspect the model, write and print the results."""
    import sys

    from patchwords.cli.inspect.explorer import check_explorer_options, write_explorer_page
    from patchwords.cli.inspect.nearest import check_nearest_options, open_nearest_search
    from patchwords.cli.options import claim_output_folder
    from patchwords.evaluation.predictions import load_model_on_device
    from patchwords.files import check_csv_writable
    from patchwords.report.inspection import PhotoReader, open_photos

    if config.output is None and config.page.explore is None:
        raise ConfigError(
            "nothing to do: --output FOLDER writes figures and numbers, --explore PAGE.html a page"
        )
    check_explorer_options(config.page, bool(config.images), config.source)
    check_nearest_options(config.near, config.cache, bool(config.images), config.output is not None)
    check_inspection_counts(config)
    examples = open_photos(config.images, config.image_column) if config.images else None
    search = open_nearest_search(config.near, config.cache, config.source)
    device = config.where.choose()
    subject = load_model_on_device(config.source, device, config.where.workers)
    size = config.image_size
    if size is not None:
        from patchwords.training.model_setup import parse_image_size

        size = parse_image_size(size)
    preprocess = subject.preprocess
    if size is not None:
        preprocess = replace(preprocess, image_size=size)
    photos = PhotoReader(subject, preprocess)
    plan = plan_inspection(config, photos) if examples is not None else None
    folder = claim_output_folder(config.output, config.overwrite)
    if config.page.explore is not None:
        check_csv_writable(config.page.explore, config.overwrite, "--explore")
    results, summary = {}, ""
    with device.autocast():
        if folder is not None:
            inspection = inspect_model(config, photos, examples, plan, search)
            write_inspection(folder, inspection)
            results = inspection.results
        if examples is not None and config.page.explore is not None:
            page, summary = write_explorer_page(config.page, photos, examples, config.photos)
            results = results | {"page": str(page)}
    for path, reason in photos.unreadable.items():
        print(f"patchwords: {path}: {reason}", file=sys.stderr)
    if config.json:
        print(jsonlib.dumps(results))
        return 2 if photos.unreadable else 0
    if folder is not None:
        print_inspection(results, folder)
    if summary:
        print(f"page to open in a browser: {config.page.explore} ({summary})")
    return 2 if photos.unreadable else 0


def check_inspection_counts(config: InspectCommand) -> None:
    """Refuse counts that are too small, and flags that need images without any."""
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
        raise ConfigError(f"{flag} needs images: give them after SRC")


def list_attention_flags(config: InspectCommand) -> list[str]:
    """List the flags on the command line that need a model with attention."""
    given = {
        "--query": config.query is not None,
        "--class-name": config.class_name is not None,
        "--layers": bool(config.layers),
        "--heads": bool(config.heads),
    }
    return [flag for flag, is_given in given.items() if is_given]


def plan_inspection(config: InspectCommand, photos: PhotoReader) -> InspectionPlan:
    """Check the settings against the model; raises ConfigError for what it cannot do.

    A model without attention can only find the nearest images.
    """
    import torch

    from patchwords.errors import did_you_mean
    from patchwords.interpret.attention import check_heads, find_patch_index
    from patchwords.models.checks import check_layer_indices

    try:
        vit = photos.require_attention()
    except ConfigError as error:
        only_nearest = config.near.nearest is not None and config.page.explore is None
        if only_nearest and not list_attention_flags(config):
            return InspectionPlan([], [], None, str(error))
        raise
    height, width = photos.preprocess.image_size
    grid = vit.grid(torch.empty(1, vit.config.channels, height, width))
    if config.query is not None:
        find_patch_index(config.query, grid)
    count, labels = vit.config.layers, photos.loaded.source.labels
    layers = check_layer_indices(list(config.layers), count) or sorted({0, count // 2, count - 1})
    heads = check_heads(config.heads, vit.config.heads) or list(range(vit.config.heads))
    if config.class_name is None:
        return InspectionPlan(layers, heads, None)
    if config.class_name not in labels:
        hint = did_you_mean(config.class_name, labels) if labels else "; it was trained without any"
        raise ConfigError(f"--class-name {config.class_name!r}: the model has no such class{hint}")
    return InspectionPlan(layers, heads, labels.index(config.class_name))


def write_inspection(folder: Path, inspection: Inspection) -> None:
    import numpy as np

    from patchwords.files import write_atomically

    text = jsonlib.dumps(inspection.results, indent=2, ensure_ascii=False)
    write_atomically(folder / "results.json", text + "\n")
    arrays = io.BytesIO()
    np.savez_compressed(arrays, allow_pickle=False, **inspection.arrays)
    write_atomically(folder / "arrays.npz", arrays.getvalue())
    for name, content in inspection.figures.items():
        write_atomically(folder / name, content)


def inspect_model(
    config: InspectCommand,
    photos: PhotoReader,
    examples: ImageDataset | None,
    plan: InspectionPlan | None,
    search: NearestSearch | None = None,
) -> Inspection:
    """Run every part of the inspection, the parts that need no images first."""
    from patchwords.data.dataset import subsample_evenly
    from patchwords.report.inspection import Inspection, inspect_filters, inspect_positions

    inspection = Inspection.start(photos.loaded.name)
    inspect_filters(inspection, photos.loaded.model)
    inspect_positions(inspection, photos.loaded.model)
    if examples is None or plan is None:
        return inspection
    if search is not None:
        chosen = subsample_evenly(examples, config.photos)
        inspect_nearest(inspection, search, photos, chosen)
    if plan.no_attention is not None:
        inspection.leave_out("attention", plan.no_attention)
    else:
        inspect_images(inspection, config, photos, examples, plan)
    return inspection


def inspect_images(
    inspection: Inspection,
    config: InspectCommand,
    photos: PhotoReader,
    examples: ImageDataset,
    plan: InspectionPlan,
) -> None:
    """Run the parts that need images and attention, the quick ones first."""
    from patchwords.data.dataset import subsample_evenly
    from patchwords.report import inspection as parts

    vit = photos.require_attention()
    names, pixels = photos.read_all(subsample_evenly(examples, config.photos))
    parts.inspect_photos(inspection, photos, names, pixels, plan.class_index)
    parts.inspect_heads(
        inspection, photos, names[0], pixels[0], plan.layers, plan.heads, config.query
    )

    def batches(count: int, title: str) -> Iterator[Tensor]:
        chosen = subsample_evenly(examples, count)
        with show_inspection_progress(title, len(chosen)) as advance:
            for batch_names, batch in photos.batches(chosen):
                yield photos.normalise(batch)
                advance(len(batch_names))

    distance_batches = batches(config.distance_images, "attention distance")
    parts.inspect_distance(inspection, vit, distance_batches, photos.preprocess.image_size)
    parts.inspect_tokens(inspection, vit, batches(config.distance_images, "tokens"))
    if not photos.loaded.source.labels:
        reason = "the model was pre-trained without classes, so there is no answer to explain"
        inspection.leave_out("truth", reason)
        inspection.leave_out("gradient rollout", reason)
    elif config.truth_images:
        truth_batches = batches(config.truth_images, "deletion and insertion")
        parts.inspect_faithfulness(inspection, vit, truth_batches, config.baseline)


@contextlib.contextmanager
def show_inspection_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def print_inspection(results: dict[str, Any], folder: Path) -> None:

    from patchwords.cli.format import make_console, print_lines

    print_lines(make_console(), *format_inspection_lines(results, folder))


def format_inspection_lines(results: dict[str, Any], folder: Path) -> list[str]:
    """Format the main numbers, and whether the maps explain the predictions."""
    filters = results["filters"]
    lines = [
        f"filters: the first {len(filters['explained'])} principal components hold "
        f"{sum(filters['explained']):.0%} of the variance of {filters['filters']} filters of the "
        f"{filters['of']}"
    ]
    if "positions" in results:
        lines += [
            format_positions(table, results)
            for table in first_and_last(results["positions"]["explained"])
        ]
    if "nearest" in results:
        lines.append(format_nearest(results["nearest"]))
    if "distance" in results:
        lines += format_distance(results["distance"])
    if "tokens" in results:
        tokens = results["tokens"]
        lines.append(
            f"tokens: cosine similarity to the {tokens['to']} {tokens['mean'][0]:.2f} after the "
            f"first layer, {tokens['mean'][-1]:.2f} after the last"
        )
    if "truth" in results:
        lines += format_faithfulness(results["truth"])
    lines += [f"left out: {part}: {reason}" for part, reason in results["left_out"].items()]
    return [*lines, f"figures and numbers: {folder}"]


def first_and_last(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return tables if len(tables) == 1 else [tables[0], tables[-1]]


def format_positions(table: dict[str, Any], results: dict[str, Any]) -> str:
    many = len(results["positions"]["explained"]) > 1
    return (
        f"positions{' of layer ' + str(table['layer']) if many else ''}: similarity is explained "
        f"by rows {table['rows']:.0%}, columns {table['columns']:.0%}, both in sum "
        f"{table['rows_and_columns']:.0%}, distance {table['distance']:.0%}"
    )


def format_nearest(nearest: dict[str, Any]) -> str:
    best = [photo["nearest"][0]["similarity"] for photo in nearest["photos"]]
    images, chance = pluralise(nearest["images"], "image"), nearest["by_chance"]
    return (
        f"nearest to {pluralise(len(best), 'photo')} among {images} of {nearest['data']} "
        f"({nearest['origin']}): cosines {min(best):.3f} to {max(best):.3f}"
        + ("" if chance is None else f"; two images by chance {chance:.3f}")
    )


def format_distance(distance: dict[str, Any]) -> list[str]:
    first, last = distance["pixels"][0], distance["pixels"][-1]
    return [
        f"attention distance over {pluralise(distance['images'], 'image')}: heads of the first layer "
        f"{min(first):.3g} to {max(first):.3g} pixels, of the last {min(last):.3g} to "
        f"{max(last):.3g}; uniform attention would be {distance['uniform']:.3g}"
    ]


def format_faithfulness(truth: dict[str, Any]) -> list[str]:
    lines = [
        f"do the maps explain the predictions? over {pluralise(truth['images'], 'image')}, area under "
        "insertion minus deletion, compared with random maps:"
    ]
    for name, areas in truth["maps"].items():
        if comparison := areas.get("beside_random"):
            lines.append(f"  {name}: {format_against_random(comparison)}")
    return lines
