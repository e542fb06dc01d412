"""Cutting, resizing and mirroring against Pillow, which does them one at a time."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from PIL import Image

from patchwords.data.preprocess import (
    MIN_SNAP_SIDE,
    Interpolation,
    crop_and_resize,
    flip_horizontally,
    resize_image,
)

METHODS: list[Interpolation] = ["bilinear", "bicubic"]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), np.uint8)


def pillow(
    pixels: np.ndarray,
    size: tuple[int, int],
    method: str,
    box: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
    resample = Image.Resampling[method.upper()]
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], resample, box=box))


def across_first(pixels: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """In two steps: across, then down. In one, Pillow takes the order that leaves it less to do."""
    return pillow(pillow(pixels, (len(pixels), size[1]), method), size, method)


def near(ours: np.ndarray, pillows: np.ndarray) -> None:
    apart = np.abs(ours.astype(int) - pillows)
    assert ours.shape == pillows.shape
    # Fixed-point sums of 15 and of 22 bits are rounded differently near the middle of two levels,
    # and twice: bicubic's weights may carry the first rounding on to a second level.
    assert apart.max() <= 2
    assert (apart > 0).mean() < 0.025


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("height", "width"),
    [(61, 53), (149, 211), (1, 1), (3, 1), (1, 97), (8, 8), (700, 31), (1201, 997)],
)
def test_resize_is_pillows(height: int, width: int, method: Interpolation) -> None:
    """Enlarging and reducing, up to twentyfold, each side by itself."""
    pixels = noise(height, width)
    for size in ((53, 67), (61, 53), (224, 31)):
        ours = resize_image(pixels, size, method)
        near(ours, across_first(pixels, size, method))
        if method == "bilinear":  # the order is worth a level, not more
            assert np.abs(ours.astype(int) - pillow(pixels, size, method)).max() <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_large_box_lies_on_whole_pixels(method: Interpolation) -> None:
    pixels = noise(149, 211)
    box = 12.4, 7.6, 12.4 + MIN_SNAP_SIDE + 1, 140.3
    part = np.ascontiguousarray(pixels[8:140, 12:77])
    near(crop_and_resize(pixels, box, (41, 43), method), across_first(part, (41, 43), method))


@pytest.mark.parametrize("method", METHODS)
def test_a_small_box_stays_where_it_was_drawn(method: Interpolation) -> None:
    """Half a pixel is much of a digit."""
    pixels = noise(8, 211)
    for box in ((0.6, 1.3, 6.4, 7.2), (3.5, 0.0, 203.5, 8.0)):  # small on both sides, and on one
        ours = crop_and_resize(pixels, box, (41, 43), method)
        np.testing.assert_array_equal(ours, pillow(pixels, (41, 43), method, box))


@pytest.mark.parametrize("side", [13, 149])
def test_a_box_a_hair_outside_is_the_whole_image(side: int) -> None:
    pixels = noise(side, side)
    box = -1e-13, -1e-13, side + 1e-13, side + 1e-13
    near(crop_and_resize(pixels, box, (31, 37), "bilinear"), pillow(pixels, (31, 37), "bilinear"))


def test_mirror() -> None:
    pixels = noise(13, 17)
    mirrored = flip_horizontally(pixels)
    np.testing.assert_array_equal(mirrored, pixels[:, ::-1])
    # Rows that run forwards are copied into a batch ten times as fast.
    assert mirrored.flags.c_contiguous


def test_nothing_is_said_and_the_image_is_left_alone() -> None:
    pixels = noise(149, 211)
    before = pixels.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flip_horizontally(crop_and_resize(pixels, (10.0, 20.0, 110.0, 120.0), (64, 64), "bicubic"))
    np.testing.assert_array_equal(pixels, before)
