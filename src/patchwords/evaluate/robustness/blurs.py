"""The blurs of ImageNet-C: Hendrycks & Dietterich, arXiv 1903.12261; imagenet_c/corruptions.py.

Each takes images in [0, 1] and gives such images. Lengths are in pixels.
Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from patchwords.evaluate.robustness.draws import PerImageRandom
from patchwords.evaluate.robustness.sampling import gather_pixels
from patchwords.evaluate.robustness.smoothing import gaussian_filter

MAX_MOTION_ANGLE = 45.0  # degrees, of motion blur to either side of level


def gaussian_blur(images: Tensor, draws: PerImageRandom, deviation: float) -> Tensor:
    """Smoothing by a normal curve."""
    return gaussian_filter(images, deviation)


def defocus_blur(images: Tensor, draws: PerImageRandom, radius: float, softness: float) -> Tensor:
    """Out of focus: every point becomes a disk, whose rim is softened by a normal curve."""
    kernel = make_disk_kernel(radius, softness).to(images)  # [k, k]
    reach = kernel.shape[0] // 2
    planes = images.flatten(0, 1)[:, None]  # [BC, 1, H, W]
    around = F.pad(planes, (reach,) * 4, mode="reflect")
    return F.conv2d(around, kernel[None, None]).view_as(images)


def glass_blur(
    images: Tensor, draws: PerImageRandom, deviation: float, reach: float, rounds: float
) -> Tensor:
    """Frosted glass: smoothed, pixels mixed with their neighbours, and smoothed again."""
    reach, rounds = int(reach), int(rounds)
    shape = rounds, 2, *images.shape[2:]
    steps = draws.each(lambda own: torch.randint(-reach, reach, shape, generator=own))
    images = gaussian_filter(images, deviation)
    for step in steps.unbind(1):  # [B, 2, H, W]
        images = mix_nearby_pixels(images, step, reach)
    return gaussian_filter(images, deviation)


def motion_blur(images: Tensor, draws: PerImageRandom, radius: float, deviation: float) -> Tensor:
    """A camera that moved in one direction, which is drawn: half a normal curve along a line.

    As ImageMagick's MotionBlurImage (MagickCore/effect.c), which ImageNet-C calls: 2 radius + 1
    places one pixel apart, each rounded to whole pixels; the image goes on beyond its edge.
    """
    angles = draws.uniform(-MAX_MOTION_ANGLE, MAX_MOTION_ANGLE).double().deg2rad()  # [B]
    distance = torch.arange(2 * math.ceil(radius) + 1, dtype=torch.float64, device=images.device)
    weights = torch.exp(-(distance**2) / (2 * deviation**2))
    weights = (weights / weights.sum()).to(images.dtype)
    down = torch.ceil(distance * angles.sin()[:, None] - 0.5).long()  # [B, places]
    across = torch.ceil(distance * angles.cos()[:, None] - 0.5).long()
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    blurred = torch.zeros_like(images)
    for i, weight in enumerate(weights):
        at_rows = (rows + down[:, i, None]).clamp(0, height - 1)  # [B, H]
        at_columns = (columns + across[:, i, None]).clamp(0, width - 1)  # [B, W]
        blurred += weight * gather_pixels(images, at_rows[:, :, None], at_columns[:, None, :])
    return blurred


def zoom_blur(images: Tensor, draws: PerImageRandom, farthest: float, step: float) -> Tensor:
    """A camera that moves towards the scene: the mean of the image and of its enlargements."""
    # NumPy's rounding decides whether the last one is `farthest` or the one before: here, as there.
    factors = np.arange(1, farthest, step).tolist()
    total = images.clone()
    for factor in factors:
        total += zoom_into_centre(images, factor)
    return total / (len(factors) + 1)


def zoom_into_centre(images: Tensor, factor: float) -> Tensor:
    """The middle of [B, C, H, W], enlarged bilinearly, corner upon corner, to fill the image."""
    kept = [math.ceil(side / factor) for side in images.shape[2:]]
    middle = crop_centre(images, kept)
    larger = F.interpolate(
        middle, [round(side * factor) for side in kept], mode="bilinear", align_corners=True
    )
    return crop_centre(larger, images.shape[2:])


def crop_centre(images: Tensor, size: list[int] | torch.Size) -> Tensor:
    """[B, C, H, W] -> [B, C, *size]"""
    top, left = ((side - kept) // 2 for side, kept in zip(images.shape[2:], size, strict=True))
    return images[:, :, top : top + size[0], left : left + size[1]]


def mix_nearby_pixels(images: Tensor, steps: Tensor, reach: int) -> Tensor:
    """Each pixel of [B, C, H, W] takes the value of one near it, from the last pixel to the first.

    ImageNet-C's code means to swap the two, but swaps views of one array, so that one of them is
    lost; its images were made so. A value taken from a pixel whose turn has been is the value that
    this one took before: the chain is followed back to where it started.

    Args:
        steps: int64 [B, 2, H, W], rows down and columns to the right, in [-reach, reach).
    """
    height, width = images.shape[2:]
    count = height * width
    here = torch.arange(count, device=images.device).view(height, width)
    turn = torch.zeros_like(here, dtype=torch.bool)  # whether a pixel has one: not at the rim
    turn[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    there = torch.where(turn, here + steps[:, 0] * width + steps[:, 1], here)  # [B, H, W]
    # Places below `count` are values after the turns, those from `count` on before them. A later
    # pixel has had its turn, or has none and keeps its value.
    source = torch.where(there > here, there, there + count).flatten(1)  # [B, HW]
    before = (here.flatten() + count).expand(len(source), -1)
    links = torch.cat([source, before], 1)  # [B, 2 HW]
    while bool((links[:, :count] < count).any()):
        links = links.gather(1, links)  # twice as far along the chain
    origin = (links[:, :count] - count).view(-1, height, width)
    return gather_pixels(images, origin // width, origin % width)


@lru_cache(maxsize=16)
def make_disk_kernel(radius: float, softness: float) -> Tensor:
    """float32 [k, k], sum 1: a disk smoothed by 3x3 or, above a radius of 8, 5x5 weights."""
    reach, side = (8, 3) if radius <= 8 else (int(radius), 5)
    line = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).double()
    near = torch.arange(side, dtype=torch.float64) - side // 2
    curve = torch.exp(-(near**2) / (2 * softness**2))
    weights = curve[:, None] * curve / curve.sum() ** 2
    around = F.pad((inside / inside.sum())[None, None], (side // 2,) * 4, mode="reflect")
    kernel = F.conv2d(around, weights[None, None])[0, 0]
    used = int(line.abs()[kernel.sum(0) > 0].max())
    kept = slice(reach - used, reach + used + 1)  # small disks must fit into small images
    return kernel[kept, kept].float()
