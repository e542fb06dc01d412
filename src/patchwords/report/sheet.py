"""Sheets of tiles: pictures and maps in rows, a caption below, as PNG and SVG.

Maps have the colours of viridis, whose lightness rises evenly: it reads in grey, and to
colour-blind people. An overlay is the photo itself, darkened where the map is low.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from patchwords.report.curves import encode_figure, escape_mathtext

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
