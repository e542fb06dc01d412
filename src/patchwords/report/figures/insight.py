"""Figures of what a model has learned (Fig. 7, for any model) and of nearest images.

Every caption says what is shown, over how many images, and what it does not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from patchwords.interpret.distance import AttentionDistances
from patchwords.interpret.faithfulness import FaithfulnessCurves
from patchwords.interpret.filters import PrincipalFilters
from patchwords.interpret.positions import PositionSimilarity, PositionStructure
from patchwords.report.figures.maps import (
    COLOUR_MAP,
    GridTile,
    draw_image_grid,
)
from patchwords.report.figures.mosaic import (
    MOSAIC_COLUMNS,
    MOSAIC_GAP,
    component_to_rgb,
    make_position_mosaic,
)
from patchwords.report.figures.plots import (
    LINE_STYLES,
    Curve,
    FigureFiles,
    Panel,
    draw_panels,
    mean_with_error,
    new_figure,
    save_captioned_figure,
    style_axes,
)
from patchwords.report.format import format_count, pluralise, truncate_name

MISSING_IMAGE_GREY = 0.85  # replaces a picture that can no longer be read
IDENTICAL_COSINE = 0.9995  # is written as 1.000


def draw_filter_components(filters: PrincipalFilters) -> FigureFiles:
    """Draw the principal components: filters.png and filters.svg."""
    tiles = [
        GridTile(component_to_rgb(component), f"{share:.1%}")
        for component, share in zip(filters.components, filters.explained, strict=True)
    ]
    rows = [tiles[start : start + MOSAIC_COLUMNS] for start in range(0, len(tiles), MOSAIC_COLUMNS)]
    grey = "" if filters.components.shape[3] == 3 else " The mean over the channels, in grey."
    caption = (
        f"The first {pluralise(len(tiles), 'principal component')} of the {filters.num_filters} filters of "
        f"the {filters.layer}, each with its share of their variance (together "
        f"{filters.explained.sum():.0%}). Mid-grey is 0, each on its own scale; the sign is "
        "arbitrary. They show what the first layer can distinguish, not how the model uses "
        f"it.{grey}"
    )
    return draw_image_grid(rows, caption, "filters", side=0.95)


def draw_position_similarity(
    similarity: PositionSimilarity, structures: Sequence[PositionStructure]
) -> FigureFiles:
    """Draw similarity tables: the first, the middle and the last of many."""
    count = len(similarity.values)
    chosen = sorted({0, count // 2, count - 1}) if count > 1 else [0]
    _, h, w = similarity.values.shape[:3]
    figure = new_figure(0.4 + 4.1 * len(chosen), 4.2 * min(1.5, max(0.6, h / w)))
    low = min(0.0, float(np.nanmin(similarity.values)))
    for axes, table in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        mosaic, rows, columns = make_position_mosaic(similarity.values[table])
        image = axes.imshow(mosaic, cmap=COLOUR_MAP, vmin=low, vmax=1, interpolation="nearest")
        axes.set_yticks((np.arange(len(rows)) + 0.5) * (h + MOSAIC_GAP) - 0.5, rows)
        axes.set_xticks((np.arange(len(columns)) + 0.5) * (w + MOSAIC_GAP) - 0.5, columns)
        axes.set(xlabel="column of the patch", ylabel="row of the patch")
        axes.set_title(format_position_title(similarity, structures, table), fontsize=8)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    figure.colorbar(image, ax=figure.axes, label="cosine similarity", shrink=0.8)
    content = (
        "Each tile: cosine similarity of the embedding of the offset from one patch to every other "
        "with that of the offset 0"
        if similarity.offsets
        else "Each tile: cosine similarity of the position embedding of one patch with that of every "
        "other"
    )
    omitted = "" if len(rows) == h and len(columns) == w else " Not every patch has a tile."
    caption = (
        f"{content}, on the grid of {h}x{w}. In the title: the share of the variance explained by "
        "the number of rows, or of columns, between two patches, by the sum of both, and by a "
        f"falling function of their distance.{omitted} No image is involved: the figure shows what "
        "positions tell the model, not how it uses them."
    )
    return save_captioned_figure(figure, caption, "positions")


def format_position_title(
    similarity: PositionSimilarity, structures: Sequence[PositionStructure], table: int
) -> str:
    """Format the explained shares of a table."""
    structure = structures[table]
    layer = f"layer {similarity.layers[table]}: " if len(similarity.values) > 1 else ""
    return (
        f"{layer}rows {structure.rows:.0%}, columns {structure.columns:.0%}, both "
        f"{structure.rows_and_columns:.0%}, distance {structure.distance:.0%}"
    )


def draw_attention_distance(
    distances: AttentionDistances, image_size: tuple[int, int]
) -> FigureFiles:
    """Draw a dot for every head with its standard error: distance.png and distance.svg."""
    from matplotlib.ticker import MaxNLocator

    mean, error = distances.mean, np.nan_to_num(distances.error)  # [L, K]
    figure = new_figure(max(4.6, 1.4 + 0.22 * len(mean)), 3.4)
    axes = figure.subplots()
    heads = mean.shape[1]
    offsets = np.linspace(-0.22, 0.22, heads) if heads > 1 else np.zeros(1)
    colour = LINE_STYLES[0][0]
    for layer, row, bar in zip(distances.layers, mean, error, strict=True):
        axes.errorbar(
            layer + offsets, row, bar, fmt="o", color=colour, markersize=3.2, elinewidth=0.8
        )
    uniform = "uniform attention"
    axes.axhline(distances.uniform, color="#444444", linestyle="--", linewidth=1, label=uniform)
    axes.legend(frameon=False, fontsize=7, loc="lower right")
    axes.set(xlabel="layer", ylabel="mean attention distance (pixels)")
    axes.set_ylim(0, max(float(mean.max()), distances.uniform) * 1.15 or 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style_axes(axes)
    n = len(distances.pixels)
    caption = (
        f"How far each head looks: a dot is the mean of one head over the patches of "
        f"{pluralise(n, 'image')} of {image_size[0]}x{image_size[1]} pixels"
        f"{', with its standard error' if n > 1 else ''}. The class token is left out. A large "
        "distance shows that a head looks far, not at what, or that it matters."
    )
    return save_captioned_figure(figure, caption, "distance")


def draw_token_similarity(similarity: np.ndarray, prefix: int) -> FigureFiles:
    """Draw token similarity [n, L, h, w] by depth: tokens.png and tokens.svg."""
    n, layers = similarity.shape[:2]
    flat = similarity.transpose(1, 0, 2, 3).reshape(layers, -1)
    low, high = np.quantile(flat, [0.1, 0.9], axis=1)
    curve = Curve(
        "mean", list(range(layers)), flat.mean(axis=1).tolist(), low.tolist(), high.tolist()
    )
    to = "the class token" if prefix else "the mean of the patches (there is no class token)"
    caption = (
        f"Cosine similarity of patch tokens to {to} after each layer, over all patches of "
        f"{pluralise(n, 'image')}; the band holds 80 % of them. Similar tokens point in the same "
        "direction; the figure does not show what they represent."
    )
    ticks = range(0, layers, -(-layers // 12))
    panel = Panel("Tokens by depth", "layer", "cosine similarity", [curve], x_ticks=ticks)
    return draw_panels([panel], caption, "tokens")


def draw_faithfulness(curves: Mapping[str, FaithfulnessCurves], baseline: str) -> FigureFiles:
    """Draw deletion and insertion curves of every map: truth.png and truth.svg."""
    n = len(next(iter(curves.values())).deletion)
    panels = []
    for index, title in enumerate(("deletion", "insertion")):
        lines = []
        for name, curve in curves.items():
            values = curve.insertion if index else curve.deletion
            share = np.linspace(0, 1, values.shape[1]).tolist()
            mean, error = mean_with_error(values)
            label = f"{name} ({curve.areas[:, index].mean():.3f})"
            band = ((mean + sign * error).tolist() for sign in (-1, 1))
            lines.append(Curve(label, share, mean.tolist(), *band))
        action = "added" if index else "removed"
        better = "higher is better" if index else "lower is better"
        panels.append(Panel(f"{title}: {better}", f"patches {action}", "probability", lines))
    fill = "the mean colour of the image" if baseline == "mean" else "the blurred image"
    caption = (
        "The probability of the model's answer while patches are removed or added, the most "
        f"important by each map first; over {pluralise(n, 'image')}, bands are one standard error, "
        f"areas in brackets. Missing patches are replaced by {fill}. No model was trained on such "
        "images: read the difference from random, not the height."
    )
    return draw_panels(panels, caption, "truth")


@dataclass(frozen=True)
class NearestImage:
    """A training image as the model sees it."""

    path: str
    picture: np.ndarray | None  # [H, W, 3] of 0..1; None if it cannot be read
    label: str | None
    similarity: float


@dataclass(frozen=True)
class PhotoNeighbours:
    """A photo and its neighbours, the nearest first."""

    path: str
    picture: np.ndarray  # [H, W, 3] of 0..1
    neighbours: Sequence[NearestImage]


@dataclass(frozen=True)
class SearchSummary:
    """The images that were searched, for results.json and the caption."""

    data: str
    origin: str  # "the training split"
    images: int
    skipped: int  # that cannot be read
    of: int  # images in the data; a random subset of many is searched
    asked: int  # requested neighbours
    by_chance: float | None  # median cosine of two random images


def draw_nearest_images(photos: Sequence[PhotoNeighbours], search: SearchSummary) -> FigureFiles:
    """Draw a row for each photo with its nearest images: nearest.png and nearest.svg."""
    rows = []
    for photo in photos:
        missing = np.full_like(photo.picture, MISSING_IMAGE_GREY)
        row = [GridTile(photo.picture, f"the photo\n{truncate_start(Path(photo.path).name)}")]
        row += [
            GridTile(
                missing if near.picture is None else near.picture, format_neighbour_title(near)
            )
            for near in photo.neighbours
        ]
        rows.append(row)
    return draw_image_grid(rows, format_nearest_caption(photos, search), "nearest", side=1.15)


def truncate_start(name: str, length: int = 18) -> str:
    """Shorten a long name to its end, which has the row of a file."""
    return name if len(name) <= length else "…" + name[1 - length :]


def format_neighbour_title(near: NearestImage) -> str:
    """Format label and cosine, or that the image is missing."""
    label = "no label" if near.label is None else truncate_name(near.label, 18)
    return f"{label if near.picture is not None else 'missing'}\n{near.similarity:.3f}"


def format_nearest_caption(photos: Sequence[PhotoNeighbours], search: SearchSummary) -> str:
    """Describe what is shown, among how many images, and what it does not show."""
    count = len(photos[0].neighbours)
    fewer = f" ({search.asked} were requested)" if count < search.asked else ""
    tried = search.images + search.skipped
    subset = f", a random subset of {format_count(search.of)}" if tried < search.of else ""
    if search.skipped:
        subset += f" ({format_count(search.skipped)} more cannot be read)"
    sentences = [
        f"{pluralise(len(photos), 'photo')} (left), each with the {pluralise(count, 'image')}{fewer} "
        f"of {search.data} ({search.origin}) that are nearest in the model's features, among "
        f"{pluralise(search.images, 'image')}{subset}: label and cosine above each, all as the model "
        "sees them."
    ]
    if search.by_chance is not None:
        sentences.append(f"Two random images have a cosine of {search.by_chance:.3f} (median).")
    if any(near.similarity >= IDENTICAL_COSINE for photo in photos for near in photo.neighbours):
        sentences.append("1.000 is the photo itself, or one that the model cannot distinguish.")
    sentences.append(
        "Near means similar in what a classifier on this model reads; the figure does not show why, "
        "that the photo is of their class, or that an answer is based on these images."
    )
    return " ".join(sentences)
