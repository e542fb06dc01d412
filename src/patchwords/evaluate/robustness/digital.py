"""ImageNet-C's digital corruptions, and brightness, which it counts as weather.

Hendrycks & Dietterich, arXiv 1903.12261; imagenet_c/corruptions.py. Each takes images in
[0, 1] and gives such images, which may leave [0, 1]: what calls them cuts that off.
Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchwords.evaluate.robustness.draws import PerImageRandom
from patchwords.evaluate.robustness.sampling import sample_bilinear
from patchwords.evaluate.robustness.smoothing import gaussian_filter


def shift_brightness(images: Tensor, draws: PerImageRandom, more: float) -> Tensor:
    """More light: the value of HSV, which is the largest channel, rises; hue and saturation stay.

    At a given hue and saturation all channels are proportional to the value, and black is grey.
    """
    value = images.amax(1, keepdim=True)  # [B, 1, H, W]
    brighter = (value + more).clamp(0, 1)
    return torch.where(value > 0, images * (brighter / value), brighter)


def reduce_contrast(images: Tensor, draws: PerImageRandom, kept: float) -> Tensor:
    """Nearer to the mean of each channel of the image."""
    means = images.mean((2, 3), keepdim=True)  # [B, C, 1, 1]
    return (images - means) * kept + means


def elastic_transform(
    images: Tensor, draws: PerImageRandom, strength: float, deviation: float, shift: float
) -> Tensor:
    """Stretched: three points are moved by up to `shift` pixels, then every pixel for itself.

    The movements of the pixels are uniform noise, smoothed, times the strength.
    """
    height, width = images.shape[2:]
    rows = torch.arange(height, dtype=torch.float64, device=images.device)[:, None]
    columns = torch.arange(width, dtype=torch.float64, device=images.device)
    rows, columns = rows.expand(height, width), columns.expand(height, width)
    moves = draws.uniform(-shift, shift, 3, 2).double()  # [B, 3, 2]
    points = torch.stack([columns, rows, torch.ones_like(rows)], -1)  # [H, W, 3]
    places = points @ solve_inverse_affine(moves, height, width)[:, None]  # [B, H, W, 2], x and y
    images = sample_bilinear(images, places[..., 1], places[..., 0], twice=False)
    if strength == 0:
        return images
    away = PerImageRandom(draws.seed, f"{draws.name} of pixels", draws.indices, draws.device)
    field = away.uniform(-1, 1, 2, height, width).double()  # [B, 2, H, W]
    field = gaussian_filter(field, deviation, truncate=3.0, border="reflect") * strength
    return sample_bilinear(images, rows + field[:, 1], columns + field[:, 0], twice=True)


def solve_inverse_affine(moves: Tensor, height: int, width: int) -> Tensor:
    """float64 [B, 3, 2]: (x, y, 1) of a pixel times this is where it comes from.

    Args:
        moves: [B, 3, 2], of the x and y of three corners of a square about the middle.
    """
    half = min(height, width) // 3
    middle = torch.tensor([width // 2, height // 2], dtype=moves.dtype, device=moves.device)
    signs = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=moves.dtype, device=moves.device)
    corners = middle + half * signs  # [3, 2]
    moved = torch.cat([corners + moves, torch.ones_like(moves[..., :1])], -1)  # [B, 3, 3]
    return torch.linalg.solve(moved, corners.expand_as(moves))


def pixelate(images: Tensor, draws: PerImageRandom, kept: float) -> Tensor:
    """Made smaller, to this share of the sides, and as large as before."""

    def change(image: Image.Image) -> Image.Image:
        box = Image.Resampling.BOX
        width, height = (max(1, int(side * kept)) for side in image.size)
        return image.resize((width, height), box).resize(image.size, box)

    return apply_with_pillow(images, change)


def jpeg_compression(images: Tensor, draws: PerImageRandom, quality: float) -> Tensor:
    """Written and read as JPEG of this quality."""

    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(quality))
        return Image.open(file)

    return apply_with_pillow(images, change)


def apply_with_pillow(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Each image of [B, C, H, W], C = 3 or 1, as Pillow changes it."""
    levels = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu()  # [B, H, W, C]
    arrays = [array.squeeze(-1) if array.shape[-1] == 1 else array for array in levels.numpy()]
    changed = np.stack([np.asarray(change(Image.fromarray(array))) for array in arrays])
    pixels = torch.from_numpy(changed).view(levels.shape).permute(0, 3, 1, 2)  # [B, C, H, W]
    return pixels.to(images) / 255
