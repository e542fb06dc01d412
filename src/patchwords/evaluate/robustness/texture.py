"""Texture removed without downloads: two stand-ins, neither of which is Stylized-ImageNet.

Naseer et al. (arXiv 2105.10497, Sec. 3.2) use images in the style of paintings (Geirhos et al.,
arXiv 1811.12231). Here shapes stay and fine detail goes, in two ways: smoothing that spares edges,
and pixels shuffled within small squares, which keeps all colours and no texture finer than they
are.

Sizes: B batch, C channels, H W image, r radius of a window.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from patchwords.evaluate.robustness.disturbance import Perturbation, PerturbationBatch
from patchwords.evaluate.robustness.tiles import square_cells
from patchwords.evaluate.subject import LoadedModel
from patchwords.noise import numpy_generator

SMOOTHING_CONTRASTS = (10.0, 20.0, 40.0, 80.0, 160.0)  # of 255
SQUARE_SIDES = (2, 4, 8, 16, 32)  # pixels
MIN_SQUARES_PER_SIDE = 4  # squares to a side of the image, for shapes to be left


def smooth_texture(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """float32 [B, C, H, W], detail of less contrast than the level smoothed away."""
    return guided_filter(batch.images.float(), choose_smoothing_radius(batch.images), level**2)


def choose_smoothing_radius(images: Tensor) -> int:
    """Of the windows of smoothing: 8 pixels in an image of 224, and in proportion."""
    return max(1, round(min(images.shape[-2:]) / 28))


def guided_filter(images: Tensor, radius: int, epsilon: float) -> Tensor:
    """float [B, C, H, W] -> the same: each channel guided by itself.

    He et al., "Guided Image Filtering" (ECCV 2010), Eqs. 4-8 with I = p. In a window of (2r + 1)^2
    pixels the result is a I + b with a = var / (var + epsilon): flat where the variance is far
    below epsilon, unchanged where it is far above. Means at the border are of the pixels there.
    """
    mean = window_mean(images, radius)
    variance = (window_mean(images**2, radius) - mean**2).clamp(min=0)
    a = variance / (variance + epsilon)
    b = mean * (1 - a)
    return window_mean(a, radius) * images + window_mean(b, radius)


def window_mean(images: Tensor, radius: int) -> Tensor:
    """[B, C, H, W] -> the same: over windows of (2r + 1)^2, cut off at the border"""
    side = 2 * radius + 1
    sums, counts = (
        avg_pool2d(pad(x, (radius,) * 4), side, stride=1)
        for x in (images, images.new_ones(1, 1, *images.shape[-2:]))
    )
    return sums / counts


def list_square_sides(subject: LoadedModel) -> tuple[float, ...]:
    """Sides of squares that leave four or more of them to a side of the image."""
    shortest = min(subject.preprocess.image_size)
    return tuple(float(side) for side in SQUARE_SIDES if side * MIN_SQUARES_PER_SIDE <= shortest)


def shuffle_within_squares(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """uint8 [B, C, H, W], the pixels of each square of `level` pixels in another order.

    The channels of a pixel stay together.
    """
    images, side = batch.images, int(level)
    cells = square_cells((images.shape[2], images.shape[3]), side).flatten().numpy()
    sources = [
        np.argsort(numpy_generator(seed, "texture", side, index).random(len(cells)) + cells)
        for index in batch.indices
    ]
    # The i-th pixel of a square, row after row, is given what the draw has put in i-th place.
    targets = torch.from_numpy(np.argsort(cells, kind="stable")).to(images.device)  # [H * W]
    chosen = torch.from_numpy(np.stack(sources)).to(images.device)  # [B, H * W]
    flat = images.flatten(2)  # [B, C, H * W]
    shuffled = torch.empty_like(flat)
    shuffled[:, :, targets] = flat.gather(2, chosen[:, None].expand(flat.shape))
    return shuffled.reshape(images.shape)


PUBLISHED_TEXTURE = (
    "No published number is comparable: Naseer et al. (2021, Sec. 3.2, Table 3) measure shape bias "
    "by Stylized-ImageNet, on which DeiT-T-SIN has 40.5 % and DeiT-S-SIN 52.5 % top-1."
)
TEXTURE_PERTURBATIONS = (
    Perturbation(
        name="texture-smoothing",
        family="texture",
        title="Texture smoothed, edges kept",
        x_label="contrast smoothed away, of 255",
        levels=SMOOTHING_CONTRASTS,
        published=PUBLISHED_TEXTURE,
        change=smooth_texture,
    ),
    Perturbation(
        name="texture-shuffling",
        family="texture",
        title="Pixels shuffled within squares",
        x_label="side of the squares, pixels",
        levels=(),
        levels_for=list_square_sides,
        clean=1.0,
        log_x=True,
        seeds=True,
        published=PUBLISHED_TEXTURE,
        change=shuffle_within_squares,
    ),
)
