"""Masks as files: index images with a palette, and photos with a mask laid over.

Sizes: h w photo, K classes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from patchwords.data.sources.mask_table import IGNORE, Colour

OVERLAY_STRENGTH = 0.55  # of the class's colour; the rest is the photo
MAX_OVERLAY_SIDE = 480  # pixels of the longer side, on a page
JPEG_QUALITY = 85


def encode_index_png(
    mask: np.ndarray, palette: Sequence[Colour], values: Sequence[int] | None = None
) -> bytes:
    """Encode class indices, uint8 [h, w], as a PNG with a palette.

    `values` are what stands for each class in the file; default: its index.
    """
    values = list(range(len(palette))) if values is None else list(values)
    table = np.full(256, IGNORE, np.uint8)
    table[: len(values)] = values
    colours = np.zeros((256, 3), np.uint8)
    colours[values] = np.array(palette, np.uint8).reshape(-1, 3)
    image = Image.fromarray(table[mask])  # mode L
    image.putpalette(colours.reshape(-1).tolist())
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def overlay_mask(photo: np.ndarray, mask: np.ndarray, palette: Sequence[Colour]) -> np.ndarray:
    """Lay class colours over a photo, uint8 [h, w, 3]; pixels without a label stay as they are."""
    colours = np.zeros((256, 3), np.float32)
    colours[: len(palette)] = np.array(palette, np.float32).reshape(-1, 3)
    strength = np.zeros((256, 1), np.float32)
    strength[: len(palette)] = OVERLAY_STRENGTH
    share = strength[mask]  # [h, w, 1]
    return np.rint(photo * (1 - share) + colours[mask] * share).astype(np.uint8)


def encode_overlay(
    photo: np.ndarray,
    mask: np.ndarray | None,
    palette: Sequence[Colour],
    most: int | None = MAX_OVERLAY_SIDE,
) -> bytes:
    """Encode a photo with a mask laid over as JPEG, its longer side of `most` pixels or less."""
    image = Image.fromarray(photo if mask is None else overlay_mask(photo, mask, palette))
    if most is not None:
        image.thumbnail((most, most))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()
