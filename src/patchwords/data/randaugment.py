"""RandAugment on a batch: the sixteen operations of the original, in plain torch.

Cubuk et al. 2020 (arXiv 1909.13719); operations, their order and their levels are those of the
TensorFlow code that AugReg used (big_vision, pp/archive/autoaugment.py). Each layer applies one
operation, drawn for each image. Levels go from 0 to 10 and on: AugReg uses 15 and 20.

Where the original follows Pillow this does so to the bit, except which of two pixels is nearest
in the geometric operations. Shifts and cutouts are given there in pixels of a 224-pixel image
(100 and 40); here they are those shares of the side, so that they mean the same at 32 or 384.

Sizes: n images, C channels, H W image. Images are uint8 [n, C, H, W], strengths float64 [n].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

MAX_LEVEL = 10.0
FILL_VALUE = 128  # grey, for what comes in from outside the image


def randaugment(
    images: torch.Tensor, generators: Sequence[np.random.Generator], layers: int, magnitude: float
) -> torch.Tensor:
    """uint8 [B, C, H, W] -> the same; image i is changed by draws of generators[i] alone."""
    images = images.clone()
    for _ in range(layers):
        # An operation, a sign, and a spot that only Cutout looks at.
        draws = np.array([generator.random(4) for generator in generators]).reshape(-1, 4)
        chosen = (draws[:, 0] * len(OPERATIONS)).astype(int)
        for number in np.unique(chosen).tolist():
            operation, strength, signed = OPERATIONS[number]
            rows = np.flatnonzero(chosen == number)
            sign = np.where(draws[rows, 1] < 0.5, -1.0, 1.0) if signed else 1.0
            columns = np.column_stack(
                [np.full(len(rows), strength(magnitude / MAX_LEVEL)) * sign, draws[rows, 2:]]
            )
            amounts = torch.from_numpy(columns).to(images.device)  # [n, 3]
            where = torch.from_numpy(rows).to(images.device)
            images[where] = operation(images[where], amounts)
    return images


def _each(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None, None]  # [n] -> [n, 1, 1, 1]


# --- colour ---


def to_greyscale(images: torch.Tensor) -> torch.Tensor:
    """uint8 [n, C, H, W] -> int32 [n, 1, H, W]: ITU-R 601 luma in Pillow's fixed point."""
    x = images.to(torch.int32)
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None]


def blend_images(start: torch.Tensor, images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """From start (factor 0) through the image (1) and beyond, cut off at 0 and 255."""
    start = start.to(torch.float32)
    mixed = start + _each(factors).to(torch.float32) * (images.to(torch.float32) - start)
    return mixed.clamp_(0, 255).to(torch.uint8)  # truncates, as Pillow does


def adjust_brightness(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    return blend_images(torch.zeros((), device=images.device), images, factors)


def adjust_contrast(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    luma = to_greyscale(images)
    total = luma.sum(dim=(1, 2, 3), dtype=torch.int64)  # whole numbers: the same in any batch
    pixels = luma[0].numel() if len(luma) else 1
    mean = (2 * total + pixels) // (2 * pixels)  # rounded, halves up
    return blend_images(_each(mean), images, factors)


def adjust_saturation(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    return blend_images(to_greyscale(images), images, factors)


def adjust_sharpness(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The other end is Pillow's SMOOTH: a 3 x 3 mean with weight 5 of 13 in the middle."""
    if min(images.shape[-2:]) < 3:
        return images
    x = images.to(torch.int32)
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]  # [n, C, H - 2, W]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[:, :, 1:-1, 1:-1]
    x[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26  # rounded; the border stays as it is
    return blend_images(x, images, factors)


def _look_up(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Replace the values of each channel by its own row of table [n, C, 256]."""
    table = table.clamp(0, 255).to(torch.uint8)
    return table.gather(2, images.flatten(2).long()).view(images.shape)


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """Each channel stretched so that its darkest value is 0 and its brightest 255."""
    low = images.amin((2, 3)).to(torch.float64)[..., None]  # [n, C, 1]
    high = images.amax((2, 3)).to(torch.float64)[..., None]
    values = torch.arange(256, dtype=torch.float64, device=images.device).expand(*low.shape[:2], -1)
    scale = torch.full_like(low, 255) / (
        high - low
    )  # 255 / x is 255 (1 / x) in torch: not the same
    return _look_up(images, torch.where(high > low, values * scale - low * scale, values))


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Each channel's histogram made flat, in Pillow's integer arithmetic."""
    flat = images.flatten(2).long()  # [n, C, H W]
    counts = flat.new_zeros(*flat.shape[:2], 256).scatter_add_(2, flat, torch.ones_like(flat))
    before = counts.cumsum(2) - counts  # pixels darker than the value
    brightest = counts.gather(2, flat.amax(2, keepdim=True))  # [n, C, 1]
    step = (flat.shape[2] - brightest) // 255
    values = torch.arange(256, device=images.device).expand_as(counts)
    table = (before + step // 2) // step.clamp(min=1)
    return _look_up(images, torch.where(step > 0, table, values))


def posterize(images: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Keep the highest bits; at least one, as TensorFlow's shift does at level 0."""
    mask = 256 - 2 ** (8 - bits.clamp(1, 8).to(torch.int32))
    return images & _each(mask).to(torch.uint8)


def solarize(images: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    return torch.where(images < _each(thresholds), images, 255 - images)


def solarize_add(images: torch.Tensor, additions: torch.Tensor) -> torch.Tensor:
    """Brighten what is darker than 128."""
    added = (images.to(torch.float32) + _each(additions)).clamp_(0, 255).to(torch.uint8)
    return torch.where(images < 128, added, images)


# --- geometry ---


def affine(images: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Take each pixel from matrix [n, 6] times its place: the nearest one, or grey outside."""
    height, width = images.shape[-2:]
    x = torch.arange(width, dtype=torch.float64, device=images.device)[None, None] + 0.5
    y = torch.arange(height, dtype=torch.float64, device=images.device)[None, :, None] + 0.5
    a, b, c, d, e, f = matrices.T[..., None, None]  # each [n, 1, 1]
    from_x, from_y = (a * x + b * y + c).floor(), (d * x + e * y + f).floor()  # [n, H, W]
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    index = from_y.clamp(0, height - 1) * width + from_x.clamp(0, width - 1)
    flat = index.long().flatten(1)[:, None].expand(-1, images.shape[1], -1)  # [n, C, H W]
    moved = images.flatten(2).gather(2, flat).view(images.shape)
    return torch.where(inside[:, None], moved, FILL_VALUE)


def _matrices(amounts: torch.Tensor, **entries: torch.Tensor | float) -> torch.Tensor:
    """[n, 6]: the identity with some entries a b c / d e f replaced."""
    rows = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 1.0, "f": 0.0, **entries}
    return torch.stack([torch.zeros_like(amounts) + value for value in rows.values()], dim=1)


def rotate(images: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor:
    """About the middle; counter-clockwise for degrees above 0."""
    height, width = images.shape[-2:]
    cos, sin = torch.cos(degrees * (math.pi / 180)), torch.sin(degrees * (math.pi / 180))
    c = width / 2 - cos * (width / 2) + sin * (height / 2)
    f = height / 2 - sin * (width / 2) - cos * (height / 2)
    return affine(images, _matrices(degrees, a=cos, b=-sin, c=c, d=sin, e=cos, f=f))


def cutout(images: torch.Tensor, amounts: torch.Tensor) -> torch.Tensor:
    """A grey square of half side amounts[:, 0] (a share of H), at amounts[:, 1:] in [0, 1)."""
    height, width = images.shape[-2:]
    half = (amounts[:, 0] * height).floor()[:, None]  # [n, 1]
    y = torch.arange(height, device=images.device) - (amounts[:, 1:2] * height).floor()  # [n, H]
    x = torch.arange(width, device=images.device) - (amounts[:, 2:3] * width).floor()  # [n, W]
    rows, columns = (y >= -half) & (y < half), (x >= -half) & (x < half)
    return torch.where(rows[:, None, :, None] & columns[:, None, None, :], FILL_VALUE, images)


# What is applied, its strength as a function of level / 10, and whether it goes both ways.
Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OPERATIONS: tuple[tuple[Operation, Callable[[float], float], bool], ...] = (
    (lambda x, k: autocontrast(x), lambda m: 0, False),
    (lambda x, k: equalize(x), lambda m: 0, False),
    (lambda x, k: 255 - x, lambda m: 0, False),  # Invert
    (lambda x, k: rotate(x, k[:, 0]), lambda m: 30 * m, True),
    (lambda x, k: posterize(x, k[:, 0]), lambda m: int(4 * m), False),
    (lambda x, k: solarize(x, k[:, 0]), lambda m: int(256 * m), False),
    (lambda x, k: adjust_saturation(x, k[:, 0]), lambda m: 1.8 * m + 0.1, False),
    (lambda x, k: adjust_contrast(x, k[:, 0]), lambda m: 1.8 * m + 0.1, False),
    (lambda x, k: adjust_brightness(x, k[:, 0]), lambda m: 1.8 * m + 0.1, False),
    (lambda x, k: adjust_sharpness(x, k[:, 0]), lambda m: 1.8 * m + 0.1, False),
    (lambda x, k: affine(x, _matrices(k[:, 0], b=k[:, 0])), lambda m: 0.3 * m, True),  # ShearX
    (lambda x, k: affine(x, _matrices(k[:, 0], d=k[:, 0])), lambda m: 0.3 * m, True),  # ShearY
    # TranslateX, TranslateY
    (
        lambda x, k: affine(x, _matrices(k[:, 0], c=k[:, 0] * x.shape[3])),
        lambda m: 100 / 224 * m,
        True,
    ),
    (
        lambda x, k: affine(x, _matrices(k[:, 0], f=k[:, 0] * x.shape[2])),
        lambda m: 100 / 224 * m,
        True,
    ),
    (cutout, lambda m: 40 / 224 * m, False),
    (lambda x, k: solarize_add(x, k[:, 0]), lambda m: int(110 * m), False),
)
