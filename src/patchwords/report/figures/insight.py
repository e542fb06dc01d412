"""Figures of what a model has learned: Fig. 7 of the paper, of any model; PNG and SVG.

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
    encode_captioned_figure,
)
from patchwords.report.figures.mosaic import (
    MOSAIC_COLUMNS,
    MOSAIC_GAP,
    component_to_rgb,
    make_position_mosaic,
)
from patchwords.report.figures.plots import Curve, Panel, draw_panels, new_figure
from patchwords.report.format import format_count, pluralise, truncate_name

MAX_POSITION_TABLES = 3
FigureFiles = dict[str, bytes]


def draw_filter_components(filters: PrincipalFilters) -> FigureFiles:
    """filters.png and .svg"""
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
        "arbitrary. They show what the first layer can tell apart, not what the model makes of "
        f"it.{grey}"
    )
    return draw_image_grid(rows, caption, "filters", side=0.95)


def draw_position_similarity(
    similarity: PositionSimilarity, structures: Sequence[PositionStructure]
) -> FigureFiles:
    """positions.png and .svg; of many tables the first, the middle and the last"""
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
    what = (
        "Each tile: how alike the embedding of the offset from one patch to every other is to that "
        "of the offset 0"
        if similarity.offsets
        else "Each tile: cosine similarity of the position embedding of one patch to that of every "
        "other"
    )
    every = "" if len(rows) == h and len(columns) == w else " Not every patch has a tile."
    caption = (
        f"{what}, on the grid of {h}x{w}. In the title: the share of the variance of similarities "
        "explained by how many rows, or columns, two patches are apart, by both in sum, and by a "
        f"falling function of their distance.{every} No image takes part: it shows what positions "
        "tell the model, not what it does with them."
    )
    return encode_captioned_figure(figure, caption, "positions")


def format_position_title(
    similarity: PositionSimilarity, structures: Sequence[PositionStructure], table: int
) -> str:
    found = structures[table]
    layer = f"layer {similarity.layers[table]}: " if len(similarity.values) > 1 else ""
    return (
        f"{layer}rows {found.rows:.0%}, columns {found.columns:.0%}, both "
        f"{found.rows_and_columns:.0%}, distance {found.distance:.0%}"
    )


def draw_attention_distance(
    distances: AttentionDistances, image_size: tuple[int, int]
) -> FigureFiles:
    """distance.png and .svg: a dot for every head, with its standard error"""
    from matplotlib.ticker import MaxNLocator

    mean, error = distances.mean, np.nan_to_num(distances.error)  # [L, K]
    figure = new_figure(max(4.6, 1.4 + 0.22 * len(mean)), 3.4)
    axes = figure.subplots()
    heads = mean.shape[1]
    aside = np.linspace(-0.22, 0.22, heads) if heads > 1 else np.zeros(1)
    for layer, row, wide in zip(distances.layers, mean, error, strict=True):
        axes.errorbar(
            layer + aside, row, wide, fmt="o", color="#0072b2", markersize=3.2, elinewidth=0.8
        )
    alike = "a head that looks everywhere alike"
    axes.axhline(distances.uniform, color="#444444", linestyle="--", linewidth=1, label=alike)
    axes.legend(frameon=False, fontsize=7, loc="lower right")
    axes.set(xlabel="layer", ylabel="mean attention distance (pixels)")
    axes.set_ylim(0, max(float(mean.max()), distances.uniform) * 1.15 or 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    n = len(distances.pixels)
    caption = (
        f"How far each head looks: a dot is a head, averaged over the patches of "
        f"{pluralise(n, 'image')} of {image_size[0]}x{image_size[1]} pixels"
        f"{', with its standard error' if n > 1 else ''}. The class token is left out. A large "
        "distance says that a head looks far, not at what, nor that it matters."
    )
    return encode_captioned_figure(figure, caption, "distance")


def draw_token_similarity(similarity: np.ndarray, prefix: int) -> FigureFiles:
    """[n, L, h, w] -> tokens.png and .svg"""
    n, layers = similarity.shape[:2]
    flat = similarity.transpose(1, 0, 2, 3).reshape(layers, -1)
    low, high = np.quantile(flat, [0.1, 0.9], axis=1)
    curve = Curve(
        "mean", list(range(layers)), flat.mean(axis=1).tolist(), low.tolist(), high.tolist()
    )
    to = "the class token" if prefix else "the mean of the patches (there is no class token)"
    caption = (
        f"Cosine similarity of patch tokens to {to} after each layer, over all patches of "
        f"{pluralise(n, 'image')}; the band holds 80 % of them. Tokens that are alike point the same "
        "way; it does not show what they stand for."
    )
    ticks = range(0, layers, -(-layers // 12))
    panel = Panel("Tokens by depth", "layer", "cosine similarity", [curve], x_ticks=ticks)
    return draw_panels([panel], caption, "tokens")


def draw_faithfulness(curves: Mapping[str, FaithfulnessCurves], baseline: str) -> FigureFiles:
    """truth.png and .svg"""
    n = len(next(iter(curves.values())).deletion)
    panels = []
    for index, title in enumerate(("deletion", "insertion")):
        lines = []
        for name, truth in curves.items():
            values = truth.insertion if index else truth.deletion
            share = np.linspace(0, 1, values.shape[1])
            mean, wide = values.mean(axis=0), standard_error_band(values)
            label = f"{name} ({truth.areas[:, index].mean():.3f})"
            lines.append(
                Curve(
                    label,
                    share.tolist(),
                    mean.tolist(),
                    *((mean + s * wide).tolist() for s in (-1, 1)),
                )
            )
        of = "put in" if index else "taken away"
        better = "higher is truer" if index else "lower is truer"
        panels.append(Panel(f"{title}: {better}", f"patches {of}", "probability", lines))
    stands = "the mean colour of the image" if baseline == "mean" else "the blurred image"
    caption = (
        "The probability of the class that the model answered, while patches are taken away or put "
        f"in, the most important ones by each map first; over {pluralise(n, 'image')}, bands are one "
        f"standard error, areas in brackets. Where a patch is missing, {stands} stands. No model "
        "was trained on such images: read the difference from random, not the height."
    )
    return draw_panels(panels, caption, "truth")


def standard_error_band(values: np.ndarray) -> np.ndarray:
    """[n, S + 1] -> [S + 1], the standard error; 0 for a single image"""
    n = len(values)
    return values.std(axis=0, ddof=1) / n**0.5 if n > 1 else np.zeros(values.shape[1])


# Figure of photos and the training images that are nearest to them; PNG and SVG.


MISSING_IMAGE_GREY = 0.85  # the grey in place of a picture that is gone
IDENTICAL_COSINE = 0.9995  # a cosine that is written as 1.000


@dataclass(frozen=True)
class NearestImage:
    """A training image, as the model sees it."""

    path: str
    picture: np.ndarray | None  # [H, W, 3] of 0..1; None: it can no longer be read
    label: str | None
    similarity: float


@dataclass(frozen=True)
class PhotoNeighbours:
    """A photo, and its nearest, the nearest first."""

    path: str
    picture: np.ndarray  # [H, W, 3] of 0..1
    neighbours: Sequence[NearestImage]


@dataclass(frozen=True)
class SearchSummary:
    """What was looked through, for the caption."""

    data: str
    origin: str  # which of its images, in words
    images: int
    skipped: int  # that cannot be read
    of: int  # images there are; of many some were drawn
    asked: int  # neighbours asked for
    by_chance: float | None  # the median cosine of two of these images


def draw_nearest_images(
    companies: Sequence[PhotoNeighbours], searched: SearchSummary
) -> dict[str, bytes]:
    """nearest.png and .svg: a row for each photo, on the left, with its nearest beside it"""
    rows = []
    for company in companies:
        gone = np.full_like(company.picture, MISSING_IMAGE_GREY)
        row = [GridTile(company.picture, f"the photo\n{truncate_start(Path(company.path).name)}")]
        row += [
            GridTile(gone if near.picture is None else near.picture, format_neighbour_title(near))
            for near in company.neighbours
        ]
        rows.append(row)
    return draw_image_grid(rows, format_nearest_caption(companies, searched), "nearest", side=1.15)


def truncate_start(name: str, length: int = 18) -> str:
    """Of a long name the end, where a row of a file stands."""
    return name if len(name) <= length else "…" + name[1 - length :]


def format_neighbour_title(near: NearestImage) -> str:
    """Above a picture: what it is and how near, or that it is gone."""
    label = "no label" if near.label is None else truncate_name(near.label, 18)
    return f"{label if near.picture is not None else 'it is gone'}\n{near.similarity:.3f}"


def format_nearest_caption(companies: Sequence[PhotoNeighbours], searched: SearchSummary) -> str:
    """What is shown, among how many images, and what it does not show"""
    found = len(companies[0].neighbours)
    fewer = f" ({searched.asked} were asked for)" if found < searched.asked else ""
    tried = searched.images + searched.skipped
    some = f", drawn of {format_count(searched.of)}" if tried < searched.of else ""
    if searched.skipped:
        some += f" ({format_count(searched.skipped)} more cannot be read)"
    said = (
        f"{pluralise(len(companies), 'photo')}, on the left, and beside each the "
        f"{pluralise(found, 'image')}{fewer} of {searched.data} ({searched.origin}) whose features "
        f"are nearest to its own, among {pluralise(searched.images, 'image')}{some}: label and "
        "cosine above each, all as the model sees them."
    )
    if searched.by_chance is not None:
        said += f" Two of those images drawn by chance are at {searched.by_chance:.3f} (median)."
    if any(near.similarity >= IDENTICAL_COSINE for one in companies for near in one.neighbours):
        said += " At 1.000 it is the photo itself, or one that the model cannot tell from it."
    return said + (
        " Near is alike in what a classifier on this model reads; the figure shows neither why, "
        "nor that the photo is of their class, nor that an answer comes from these images."
    )
