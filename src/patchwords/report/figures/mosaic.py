"""Tiles side by side in one array: filters, and similarities of positions.

Sizes: P side of a filter, C channels, h w grid, r c tiles down and across.
"""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from patchwords.data.dataset import evenly_spaced_indices
from patchwords.report.figures.maps import COLOUR_MAP
from patchwords.report.html import Markup, tag
from patchwords.report.sections.predictions import LOSSLESS_SIDE

MOSAIC_COLUMNS = 7  # filters in a row, and tiles of positions each way, as in the paper
MOSAIC_GAP = 1  # patches, or pixels, between two tiles


def component_to_rgb(component: np.ndarray) -> np.ndarray:
    """[P, P, C] -> [P, P, 3] of 0..1, zero in the middle"""
    if component.shape[2] != 3:
        component = component.mean(axis=2, keepdims=True).repeat(3, axis=2)
    return 0.5 + 0.5 * component / max(np.abs(component).max(), np.finfo(np.float32).tiny)


def make_position_mosaic(values: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
    """[h, w, h, w] -> tiles side by side in one array, NaN between; and which rows and columns"""
    rows, columns = (evenly_spaced_indices(n, MOSAIC_COLUMNS) for n in values.shape[:2])
    return make_mosaic(values[np.ix_(rows, columns)]), rows, columns


def make_mosaic(tiles: np.ndarray) -> np.ndarray:
    """[r, c, h, w, ...] -> [r * (h + GAP) - GAP, c * (w + GAP) - GAP, ...], NaN between"""
    r, c, h, w = tiles.shape[:4]
    sides = (r * (h + MOSAIC_GAP) - MOSAIC_GAP, c * (w + MOSAIC_GAP) - MOSAIC_GAP)
    whole = np.full((*sides, *tiles.shape[4:]), np.nan, dtype=np.float32)
    for i in range(r):
        for j in range(c):
            top, left = i * (h + MOSAIC_GAP), j * (w + MOSAIC_GAP)
            whole[top : top + h, left : left + w] = tiles[i, j]
    return whole


def apply_colour_map(values: np.ndarray, low: float, high: float = 1.0) -> np.ndarray:
    """[H, W] -> [H, W, 3] of 0..1 in the colours of maps; NaN stays NaN"""
    from matplotlib import colormaps

    share = (values - low) / max(high - low, np.finfo(np.float32).tiny)
    colours = colormaps[COLOUR_MAP](np.nan_to_num(share))[..., :3]
    return np.where(np.isnan(values)[..., None], np.nan, colours)


def inline_image(pixels: np.ndarray, alt: str, photo: bool = False) -> Markup:
    """[H, W, 3] of 0..1 -> an <img> with the picture inside it; NaN is transparent

    A photo that is not tiny is a JPEG; all else is exact, and enlarged with hard pixels.
    """
    seen = ~np.isnan(pixels).any(axis=2)
    bytes_ = (np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8)
    file = io.BytesIO()
    smooth = photo and max(seen.shape) > LOSSLESS_SIDE
    if smooth:
        Image.fromarray(bytes_).save(file, "JPEG", quality=82)
    else:
        alpha = np.where(seen, 255, 0).astype(np.uint8)
        Image.fromarray(np.dstack([bytes_, alpha])).save(file, "PNG", optimize=True)
    kind = "jpeg" if smooth else "png"
    source = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
    return tag("img", src=source, alt=alt, class_=None if smooth else "tiny")
