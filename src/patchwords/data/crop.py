"""The inception crop: a part of the image, random in area and in aspect ratio.

Defaults are the official ones (vit_jax input_pipeline.py, big_vision ops_image.py): 5-100 % of the
area, ratio 3/4 to 4/3.

A box is (left, top, right, bottom) in pixels of the image, and need not lie on whole pixels: so
the drawn area and ratio hold exactly for an 8x8 digit; in a photo, which cannot show half a pixel,
the box is rounded when it is cut out. Resizing filters with antialiasing (the official TensorFlow
code does not).

Sizes: h w of the image, H W of the result.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

CropBox = tuple[float, float, float, float]
Interpolation = Literal["bilinear", "bicubic"]

MIN_SNAP_SIDE = 64  # pixels: the side from which on a box may be moved by up to half a pixel
MAX_CROP_ATTEMPTS = 10  # as Inception's own code: then the largest centre crop of an allowed ratio


def draw_random_resized_crop(
    width: float,
    height: float,
    generator: np.random.Generator,
    area: tuple[float, float] = (0.05, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> CropBox:
    """A random box: its area uniform (a share of the image's), its ratio w/h log-uniform."""
    for _ in range(MAX_CROP_ATTEMPTS):
        pixels = width * height * generator.uniform(*area)
        aspect = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = math.sqrt(pixels * aspect), math.sqrt(pixels / aspect)
        if w <= width and h <= height:
            left, top = generator.random() * (width - w), generator.random() * (height - h)
            return left, top, left + w, top + h
    aspect = min(max(width / height, ratio[0]), ratio[1])
    return centre_crop_box(width, height, min(width, height * aspect), min(height, width / aspect))


def draw_random_crop(
    width: float,
    height: float,
    covering: tuple[int, int],
    size: tuple[int, int],
    generator: np.random.Generator,
) -> CropBox:
    """The box that is `size` (H, W) once the image is resized to `covering` (H, W).

    It lies anywhere: "resize, then a random crop", as BiT (input_pipeline_tf2_or_jax.py) and
    big_vision (`random_crop` in ops_image.py) do.
    """
    w, h = width * size[1] / covering[1], height * size[0] / covering[0]
    left, top = generator.random() * (width - w), generator.random() * (height - h)
    return left, top, left + w, top + h


def centre_crop_box(width: float, height: float, w: float, h: float) -> CropBox:
    """The box of w x h in the middle of an image of width x height."""
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def crop_and_resize(
    pixels: np.ndarray, box: CropBox, size: tuple[int, int], interpolation: Interpolation
) -> np.ndarray:
    """The box of uint8 [h, w, 3], resized to uint8 [H, W, 3].

    A box of some size is moved to the nearest whole pixels; a small one is taken as it is.
    """
    left, top, right, bottom = (round(side) for side in box)
    if min(right - left, bottom - top) < MIN_SNAP_SIDE and box != (left, top, right, bottom):
        return _crop_between_pixels(pixels, box, size, interpolation)
    return resize_image(np.ascontiguousarray(pixels[top:bottom, left:right]), size, interpolation)


def resize_image(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Interpolation
) -> np.ndarray:
    """uint8 [h, w, 3] -> uint8 [H, W, 3], with antialiasing.

    By torch, which has Pillow's filters in SIMD code: four times as fast, and a level away in one
    pixel of a few hundred. From version 13 on Pillow begins with the rows where that is less work,
    torch never: a level in one pixel of four then, and in sharp edges more by bicubic.
    """
    import torch
    from torch.nn.functional import interpolate

    images = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # [1, 3, h, w], channels last
    resized = interpolate(images, size, mode=interpolation, antialias=True)  # [1, 3, H, W]
    return resized[0].permute(1, 2, 0).numpy()  # [H, W, 3]


def flip_horizontally(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3], left and right exchanged; by NumPy it would take as long as resizing."""
    import torch

    return torch.from_numpy(pixels).flip(1).numpy()


def _crop_between_pixels(
    pixels: np.ndarray, box: CropBox, size: tuple[int, int], interpolation: Interpolation
) -> np.ndarray:
    from PIL import Image

    left, top, right, bottom = box
    height, width = pixels.shape[:2]
    # Rounding may have put the box a hair outside, which Pillow refuses.
    inside = max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
    resample = Image.Resampling[interpolation.upper()]
    return np.array(Image.fromarray(pixels).resize(size[::-1], resample, box=inside))
