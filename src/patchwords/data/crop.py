"""The inception crop: a part of the image, random in area and in aspect ratio.

Defaults are the official ones (vit_jax input_pipeline.py, big_vision ops_image.py): 5-100 % of the
area, ratio 3/4 to 4/3.

A box is (left, top, right, bottom) in pixels of the image, and need not lie on whole pixels: so
the drawn area and ratio hold exactly, for an 8x8 digit as for a photo. Cropping and resizing are
one call of Pillow, which filters with antialiasing (the official TensorFlow code does not).

Sizes: H W of the result.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[float, float, float, float]
Interpolation = Literal["bilinear", "bicubic"]

TRIES = 10  # as Inception's own code: then the largest centre crop of an allowed ratio


def draw_crop(
    width: float,
    height: float,
    generator: np.random.Generator,
    area: tuple[float, float] = (0.05, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """A random box: its area uniform (a share of the image's), its ratio w/h log-uniform."""
    for _ in range(TRIES):
        pixels = width * height * generator.uniform(*area)
        aspect = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = math.sqrt(pixels * aspect), math.sqrt(pixels / aspect)
        if w <= width and h <= height:
            left, top = generator.random() * (width - w), generator.random() * (height - h)
            return left, top, left + w, top + h
    aspect = min(max(width / height, ratio[0]), ratio[1])
    return centre_box(width, height, min(width, height * aspect), min(height, width / aspect))


def draw_window(
    width: float,
    height: float,
    covering: tuple[int, int],
    size: tuple[int, int],
    generator: np.random.Generator,
) -> Box:
    """The box that is `size` (H, W) once the image is resized to `covering` (H, W).

    It lies anywhere: "resize, then a random crop", as BiT (input_pipeline_tf2_or_jax.py) and
    big_vision (`random_crop` in ops_image.py) do.
    """
    w, h = width * size[1] / covering[1], height * size[0] / covering[0]
    left, top = generator.random() * (width - w), generator.random() * (height - h)
    return left, top, left + w, top + h


def centre_box(width: float, height: float, w: float, h: float) -> Box:
    """The box of w x h in the middle of an image of width x height."""
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def cut(
    image: Image.Image, box: Box, size: tuple[int, int], interpolation: Interpolation
) -> Image.Image:
    """The box of the image, resized to size (H, W), in one pass."""
    from PIL import Image

    left, top, right, bottom = box
    inside = (  # rounding may have put the box a hair outside, which Pillow refuses
        max(left, 0.0),
        max(top, 0.0),
        min(right, float(image.width)),
        min(bottom, float(image.height)),
    )
    resample = Image.Resampling[interpolation.upper()]
    # A strong reduction first shrinks by whole numbers to twice the wanted size: faster, and the
    # final antialiased pass hides it.
    return image.resize(size[::-1], resample, box=inside, reducing_gap=2.0)
