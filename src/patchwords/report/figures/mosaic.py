"""Mosaics of tiles in one array: filters and position similarities; inline images.

Sizes: P side of a filter, C channels, h w grid, r rows and c columns of tiles.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from patchwords.data.dataset import evenly_spaced_indices
from patchwords.data.decode import LOSSLESS_SIDE, encode_image_url
from patchwords.report.figures.maps import COLOUR_MAP
from patchwords.report.html import Markup, tag

MOSAIC_COLUMNS = 7  # filters in a row, and tiles of positions each way, as in the paper
MOSAIC_GAP = 1  # patches, or pixels, between two tiles


def component_to_rgb(component: np.ndarray) -> np.ndarray:
    """Map a component [P, P, C] to colours [P, P, 3] of 0..1 with zero in the middle."""
    if component.shape[2] != 3:
        component = component.mean(axis=2, keepdims=True).repeat(3, axis=2)
    return 0.5 + 0.5 * component / max(np.abs(component).max(), np.finfo(np.float32).tiny)


def make_position_mosaic(values: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
    """Tile a similarity table [h, w, h, w]; return the mosaic, its rows and its columns."""
    rows, columns = (evenly_spaced_indices(n, MOSAIC_COLUMNS) for n in values.shape[:2])
    return make_mosaic(values[np.ix_(rows, columns)]), rows, columns


def make_mosaic(tiles: np.ndarray) -> np.ndarray:
    """Join tiles [r, c, h, w, ...] into one array with NaN between them."""
    r, c, h, w = tiles.shape[:4]
    sides = (r * (h + MOSAIC_GAP) - MOSAIC_GAP, c * (w + MOSAIC_GAP) - MOSAIC_GAP)
    mosaic = np.full((*sides, *tiles.shape[4:]), np.nan, dtype=np.float32)
    for i in range(r):
        for j in range(c):
            top, left = i * (h + MOSAIC_GAP), j * (w + MOSAIC_GAP)
            mosaic[top : top + h, left : left + w] = tiles[i, j]
    return mosaic


def apply_colour_map(values: np.ndarray, low: float, high: float = 1.0) -> np.ndarray:
    """Colour values [H, W] by the map of attention: [H, W, 3] of 0..1; NaN stays NaN."""
    from matplotlib import colormaps

    share = (values - low) / max(high - low, np.finfo(np.float32).tiny)
    colours = colormaps[COLOUR_MAP](np.nan_to_num(share))[..., :3]
    return np.where(np.isnan(values)[..., None], np.nan, colours)


def inline_image(pixels: np.ndarray, alt: str, photo: bool = False) -> Markup:
    """Render [H, W, 3] of 0..1 as an inline <img>; NaN is transparent.

    A photo that is not tiny becomes a JPEG; all else is lossless and enlarged with hard pixels.
    """
    visible = ~np.isnan(pixels).any(axis=2)
    colours = (np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8)
    lossy = photo and max(visible.shape) > LOSSLESS_SIDE
    if not lossy:
        colours = np.dstack([colours, np.where(visible, 255, 0).astype(np.uint8)])
    source = encode_image_url(Image.fromarray(colours), lossless=not lossy)
    return tag("img", src=source, alt=alt, class_=None if lossy else "tiny")
