"""Pixels of a batch by their places, each image with places of its own.

Sizes: B batch, C channels, H W image, h w result.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from torch import Tensor

Places = TypeVar("Places", np.ndarray, Tensor)


def gather_pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[B, C, H, W] and int64 [B, h, w] twice, or what broadcasts to it -> [B, C, h, w]"""
    batch, channels, _, width = images.shape
    places = rows * width + columns  # [B, h, w]
    flat = places.flatten(1)[:, None].expand(batch, channels, -1)
    return images.flatten(2).gather(2, flat).view(batch, channels, *places.shape[1:])


def sample_bilinear(images: Tensor, rows: Tensor, columns: Tensor, twice: bool) -> Tensor:
    """[B, C, H, W] at fractional places, float [B, h, w] twice -> [B, C, h, w], bilinear.

    Beyond its border the image is mirrored, its last pixel once or `twice`.
    """
    height, width = images.shape[2:]
    top, left = rows.floor(), columns.floor()
    down = (rows - top)[:, None].to(images.dtype)  # [B, 1, h, w]
    right = (columns - left)[:, None].to(images.dtype)
    tops = [mirror_indices(top.long() + step, height, twice) for step in (0, 1)]
    lefts = [mirror_indices(left.long() + step, width, twice) for step in (0, 1)]
    upper, lower = (
        gather_pixels(images, row, lefts[0]) * (1 - right)
        + gather_pixels(images, row, lefts[1]) * right
        for row in tops
    )
    return upper * (1 - down) + lower * down


def mirror_indices(places: Places, length: int, twice: bool = True) -> Places:
    """Whole places, anywhere -> 0 to length - 1, as if the line went to and fro for ever.

    >>> mirror_indices(np.arange(-3, 7), 4).tolist(), mirror_indices(np.arange(-3, 7), 4, twice=False).tolist()
    ([2, 1, 0, 0, 1, 2, 3, 3, 2, 1], [3, 2, 1, 0, 1, 2, 3, 2, 1, 0])
    """
    period = 2 * length if twice else max(2 * length - 2, 1)
    folded = places % period
    back = period - twice - folded
    forth = folded < length
    return folded * forth + back * ~forth
