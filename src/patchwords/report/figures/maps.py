"""Figures of where a model looks in photos: Figs. 6 and 14 of the paper; PNG and SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from patchwords.interpret.attention import QueryPatch
from patchwords.report.figures.plots import encode_figure, escape_mathtext
from patchwords.report.format import pluralise, truncate_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Sheets of tiles: pictures and maps in rows, a caption below, as PNG and SVG.
#
# Maps have the colours of viridis, whose lightness rises evenly: it reads in grey, and to
# colour-blind people. An overlay is the photo itself, darkened where the map is low.


COLOUR_MAP = "viridis"
GRID_CAPTION_LETTERS_PER_INCH = 15.5  # of a caption, per inch of the figure
MIN_GRID_WIDTH = 4.5  # inches
TILE_GAP, TILE_TITLE_HEIGHT, CAPTION_LINE_HEIGHT = (
    0.07,
    0.36,
    0.155,
)  # between tiles, for words above one, of a caption
MIN_OVERLAY_LIGHT = 0.12  # of the photo's light that an overlay leaves where the map is lowest


@dataclass(frozen=True)
class GridTile:
    """A picture [H, W, 3] of 0..1, or a map [h, w], on a scale of its own; and words above it."""

    array: np.ndarray
    title: str = ""


def draw_image_grid(
    rows: Sequence[Sequence[GridTile]], caption: str, name: str, side: float = 1.7
) -> dict[str, bytes]:
    """-> {"NAME.png": ..., "NAME.svg": ...}; tiles of one shape, so many inches wide"""
    from matplotlib.figure import Figure

    across = max(map(len, rows))
    first = rows[0][0].array
    tall = side * first.shape[0] / first.shape[1]
    lines = wrap_caption(caption, max(side * across, MIN_GRID_WIDTH))
    width = max((side + TILE_GAP) * across + TILE_GAP, MIN_GRID_WIDTH)
    below = CAPTION_LINE_HEIGHT * (len(lines) + 1)
    height = (tall + TILE_TITLE_HEIGHT) * len(rows) + below
    figure = Figure(figsize=(width, height))
    # One pair of axes in inches for all tiles: with a pair each, fifty tiles would take seconds.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(0, height), autoscale_on=False)
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            left, bottom = (
                TILE_GAP + j * (side + TILE_GAP),
                height - (i + 1) * (tall + TILE_TITLE_HEIGHT),
            )
            draw_grid_tile(axes, tile, (left, left + side, bottom, bottom + tall))
    axes.text(TILE_GAP, CAPTION_LINE_HEIGHT / 2, "\n".join(lines), fontsize=8, va="bottom")
    return encode_png_and_svg(figure, name)


def draw_grid_tile(axes: Axes, tile: GridTile, place: tuple[float, float, float, float]) -> None:
    """Into this place: left, right, bottom and top, in inches"""
    left, right, _, top = place
    # A picture has colours already, and imshow leaves them alone.
    axes.imshow(tile.array, COLOUR_MAP, extent=place, aspect="auto", interpolation="nearest")
    middle = (left + right) / 2
    axes.text(middle, top + 0.03, escape_mathtext(tile.title), fontsize=7, ha="center", va="bottom")


def overlay_map(picture: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """[H, W, 3] of 0..1, map [h, w] -> [H, W, 3], dark where the map is low"""
    low, high = numbers.min(), numbers.max()
    light = (numbers - low) / max(high - low, np.finfo(np.float32).tiny)
    rows, columns = (
        np.arange(side) * count // side
        for side, count in zip(picture.shape, numbers.shape, strict=False)
    )
    return picture * (MIN_OVERLAY_LIGHT + (1 - MIN_OVERLAY_LIGHT) * light[rows][:, columns, None])


def encode_captioned_figure(figure: Figure, caption: str, name: str) -> dict[str, bytes]:
    """The caption goes below, in as many lines as it needs."""
    width, height = figure.get_size_inches()
    lines = wrap_caption(caption, width)
    figure.set_size_inches(width, height + CAPTION_LINE_HEIGHT * (len(lines) + 1))
    figure.supxlabel("\n".join(lines), fontsize=8, x=0.01, ha="left")
    return encode_png_and_svg(figure, name)


def wrap_caption(caption: str, width: float) -> list[str]:
    """In lines for a figure of so many inches"""
    return textwrap.wrap(escape_mathtext(caption), int(GRID_CAPTION_LETTERS_PER_INCH * width))


def encode_png_and_svg(figure: Figure, name: str) -> dict[str, bytes]:
    """As PNG and as SVG"""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "patchwords"}):
        return {
            f"{name}.png": encode_figure(figure, "png"),
            f"{name}.svg": encode_figure(figure, "svg"),
        }


MAX_HEADS_PER_ROW = 16  # in a row


@dataclass(frozen=True)
class PhotoAttention:
    """A photo as the model sees it, and maps of it."""

    name: str
    picture: np.ndarray  # [H, W, 3] of 0..1
    answer: str | None  # what the model says it is; none without classes
    maps: Mapping[str, np.ndarray]  # [h, w] each


def draw_attention_maps(
    gazes: Sequence[PhotoAttention], prefix: int, query: QueryPatch = None
) -> dict[str, bytes]:
    """maps.png and .svg: a row for each photo; each map, and the photo seen through it"""
    rows = []
    for gaze in gazes:
        answer = f"\n{truncate_name(gaze.answer, 20)}" if gaze.answer else ""
        row = [GridTile(gaze.picture, truncate_name(gaze.name, 20) + answer)]
        for name, numbers in gaze.maps.items():
            row.append(GridTile(numbers, f"{name}\nmost {numbers.max():.2g}"))
            row.append(GridTile(overlay_map(gaze.picture, numbers)))
        rows.append(row)
    caption = (
        f"Where the model looks in {pluralise(len(gazes), 'photo')}, from {describe_query(prefix, query)}: "
        "attention of the last layer (mean of heads); Attention Rollout over all layers; and, "
        "where the model knows classes, rollout weighted by gradients, which asks what speaks for "
        "the class named above the photo. Bright is much; each map has its own scale, and its "
        "largest value above. Attention says where values came from, not that the answer "
        "hangs on them: the deletion and insertion curves measure that."
    )
    return draw_image_grid(rows, caption, "maps", side=1.5)


def draw_head_maps(
    gaze: PhotoAttention,
    attention: np.ndarray,
    layers: Sequence[int],
    heads: Sequence[int],
    prefix: int,
    query: QueryPatch,
) -> dict[str, bytes]:
    """[L, K, h, w] of the chosen layers and heads -> heads.png and .svg"""
    picture = gaze.picture.copy()
    if query is not None:
        picture = frame_query_patch(picture, attention.shape[2:], query)
    rows = []
    for layer, of_layer in zip(layers, attention, strict=True):
        for start in range(0, len(heads), MAX_HEADS_PER_ROW):
            row = [GridTile(picture, truncate_name(gaze.name, 16))]
            row += [
                GridTile(numbers, f"layer {layer} head {head}\nmost {numbers.max():.2g}")
                for head, numbers in list(zip(heads, of_layer, strict=True))[
                    start : start + MAX_HEADS_PER_ROW
                ]
            ]
            rows.append(row)
    caption = (
        f"Attention of single heads in one photo, from {describe_query(prefix, query)}. Bright is much; each "
        "map has its own scale, and its largest value above. A head shows where it takes "
        "values from; what the layers after it make of them is not shown."
    )
    return draw_image_grid(rows, caption, "heads", side=1.25)


def describe_query(prefix: int, query: QueryPatch) -> str:
    """The query in words"""
    if query is not None:
        return f"the patch in row {query[0]}, column {query[1]} (from 0; framed)"
    if prefix:
        return "the class token"
    return "the patches, in the mean over all of them (there is no class token)"


def frame_query_patch(
    picture: np.ndarray, grid: Sequence[int], query: tuple[int, int]
) -> np.ndarray:
    """The patch of the query with a white and a black line around it"""
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
