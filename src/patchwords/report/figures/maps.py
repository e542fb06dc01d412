"""Figures of image grids and attention maps over photos (Figs. 6 and 14).

Maps have the colours of viridis, whose lightness rises evenly: it is readable in grey and for
colour-blind readers. An overlay is the photo, darkened where the map is low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from patchwords.report.figures.plots import (
    CAPTION_LINE_HEIGHT,
    FigureFiles,
    escape_mathtext,
    save_figure,
    wrap_caption,
)
from patchwords.report.format import pluralise, truncate_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from patchwords.interpret.attention import QueryPatch

COLOUR_MAP = "viridis"
# inches
MIN_GRID_WIDTH = 4.5
TILE_GAP, TILE_TITLE_HEIGHT = 0.07, 0.36
MIN_OVERLAY_LIGHT = 0.12  # share of the photo's light that is left where the map is lowest
MAX_HEADS_PER_ROW = 16


@dataclass(frozen=True)
class GridTile:
    """A picture [H, W, 3] of 0..1, or a map [h, w] on its own scale, with a title."""

    array: np.ndarray
    title: str = ""


def draw_image_grid(
    rows: Sequence[Sequence[GridTile]], caption: str, name: str, side: float = 1.7
) -> FigureFiles:
    """Draw rows of tiles of one shape, `side` inches wide: NAME.png and NAME.svg."""
    from matplotlib.figure import Figure

    columns = max(map(len, rows))
    first = rows[0][0].array
    tile_height = side * first.shape[0] / first.shape[1]
    row_height = tile_height + TILE_TITLE_HEIGHT
    lines = wrap_caption(caption, max(side * columns, MIN_GRID_WIDTH))
    width = max((side + TILE_GAP) * columns + TILE_GAP, MIN_GRID_WIDTH)
    height = row_height * len(rows) + CAPTION_LINE_HEIGHT * (len(lines) + 1)
    figure = Figure(figsize=(width, height))
    # One pair of axes in inches for all tiles: with one each, fifty tiles would take seconds.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(0, height), autoscale_on=False)
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            left, bottom = TILE_GAP + j * (side + TILE_GAP), height - (i + 1) * row_height
            draw_grid_tile(axes, tile, (left, left + side, bottom, bottom + tile_height))
    axes.text(TILE_GAP, CAPTION_LINE_HEIGHT / 2, "\n".join(lines), fontsize=8, va="bottom")
    return save_figure(figure, name)


def draw_grid_tile(axes: Axes, tile: GridTile, extent: tuple[float, float, float, float]) -> None:
    """Draw a tile at (left, right, bottom, top), in inches."""
    left, right, _, top = extent
    # imshow applies the colour map to maps only; pictures have colours.
    axes.imshow(tile.array, COLOUR_MAP, extent=extent, aspect="auto", interpolation="nearest")
    middle = (left + right) / 2
    axes.text(middle, top + 0.03, escape_mathtext(tile.title), fontsize=7, ha="center", va="bottom")


def overlay_map(picture: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Darken a picture [H, W, 3] of 0..1 where the map [h, w] is low."""
    low, high = numbers.min(), numbers.max()
    light = (numbers - low) / max(high - low, np.finfo(np.float32).tiny)
    rows, columns = (
        np.arange(side) * count // side
        for side, count in zip(picture.shape, numbers.shape, strict=False)
    )
    return picture * (MIN_OVERLAY_LIGHT + (1 - MIN_OVERLAY_LIGHT) * light[rows][:, columns, None])


@dataclass(frozen=True)
class PhotoAttention:
    """A photo as the model sees it, and its maps."""

    name: str
    picture: np.ndarray  # [H, W, 3] of 0..1
    answer: str | None  # the model's; None without classes
    maps: Mapping[str, np.ndarray]  # [h, w] each


def draw_attention_maps(
    photos: Sequence[PhotoAttention], prefix: int, query: QueryPatch = None
) -> FigureFiles:
    """Draw each photo's maps, alone and over the photo: maps.png and maps.svg."""
    rows = []
    for photo in photos:
        answer = f"\n{truncate_name(photo.answer, 20)}" if photo.answer else ""
        row = [GridTile(photo.picture, truncate_name(photo.name, 20) + answer)]
        for name, values in photo.maps.items():
            row.append(GridTile(values, f"{name}\nmax {values.max():.2g}"))
            row.append(GridTile(overlay_map(photo.picture, values)))
        rows.append(row)
    caption = (
        f"Where the model looks in {pluralise(len(photos), 'photo')}, from "
        f"{describe_query(prefix, query)}: attention of the last layer (mean of heads); Attention "
        "Rollout over all layers; and, for a model with classes, rollout weighted by gradients, "
        "which shows what supports the class named above the photo. Bright is high; each map has "
        "its own scale, with its maximum above. Attention shows where values came from, not that "
        "the answer depends on them: the deletion and insertion curves measure that."
    )
    return draw_image_grid(rows, caption, "maps", side=1.5)


def draw_head_maps(
    photo: PhotoAttention,
    attention: np.ndarray,
    layers: Sequence[int],
    heads: Sequence[int],
    prefix: int,
    query: QueryPatch,
) -> FigureFiles:
    """Draw attention [L, K, h, w] of the chosen layers and heads: heads.png and heads.svg."""
    picture = photo.picture.copy()
    if query is not None:
        picture = frame_query_patch(picture, attention.shape[2:], query)
    rows = []
    for layer, layer_maps in zip(layers, attention, strict=True):
        tiles = [
            GridTile(values, f"layer {layer} head {head}\nmax {values.max():.2g}")
            for head, values in zip(heads, layer_maps, strict=True)
        ]
        for start in range(0, len(heads), MAX_HEADS_PER_ROW):
            photo_tile = GridTile(picture, truncate_name(photo.name, 16))
            rows.append([photo_tile, *tiles[start : start + MAX_HEADS_PER_ROW]])
    caption = (
        f"Attention of single heads in one photo, from {describe_query(prefix, query)}. Bright is "
        "high; each map has its own scale, with its maximum above. A map shows where the head takes "
        "values from, not what later layers do with them."
    )
    return draw_image_grid(rows, caption, "heads", side=1.25)


def describe_query(prefix: int, query: QueryPatch) -> str:
    """Describe the query for a caption."""
    if query is not None:
        return f"the patch in row {query[0]}, column {query[1]} (from 0; framed)"
    if prefix:
        return "the class token"
    return "all patches, on average (there is no class token)"


def frame_query_patch(
    picture: np.ndarray, grid: Sequence[int], query: tuple[int, int]
) -> np.ndarray:
    """Draw a white and a black frame around the query patch."""
    (height, width), (rows, columns) = picture.shape[:2], grid
    top, bottom = (height * (query[0] + i) // rows for i in (0, 1))
    left, right = (width * (query[1] + i) // columns for i in (0, 1))
    line = max(1, height // 110)
    inside = picture[top:bottom, left:right].copy()
    for width_left, colour in ((2 * line, 0.0), (line, 1.0)):
        picture[
            max(0, top - width_left) : bottom + width_left,
            max(0, left - width_left) : right + width_left,
        ] = colour
    picture[top:bottom, left:right] = inside
    return picture
