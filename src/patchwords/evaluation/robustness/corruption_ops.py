"""ImageNet-C's corruption operations: blurs, noises, digital ones, brightness.

Hendrycks & Dietterich, arXiv 1903.12261; imagenet_c/corruptions.py. Each takes images in [0, 1] and
returns such images; some leave [0, 1], and the caller clips them. Lengths are in pixels.
Sizes: B batch, C channels, H W image, h w result.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from patchwords.evaluation.robustness.perturbation import PerImageRandom

# Sampling: pixels of a batch by position, each image with its own positions.


Places = TypeVar("Places", np.ndarray, Tensor)


def gather_pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Gather pixels: [B, C, H, W], int64 [B, h, w] twice (broadcast) -> [B, C, h, w]."""
    batch, channels, _, width = images.shape
    places = rows * width + columns  # [B, h, w]
    flat = places.flatten(1)[:, None].expand(batch, channels, -1)
    return images.flatten(2).gather(2, flat).view(batch, channels, *places.shape[1:])


def sample_bilinear(images: Tensor, rows: Tensor, columns: Tensor, twice: bool) -> Tensor:
    """Sample at fractional positions: [B, C, H, W], float [B, h, w] twice -> [B, C, h, w].

    The border is mirrored, with its last pixel once or `twice`.
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
    """Reflect indices of any size into 0 to length - 1.

    >>> mirror_indices(np.arange(-3, 7), 4).tolist(), mirror_indices(np.arange(-3, 7), 4, twice=False).tolist()
    ([2, 1, 0, 0, 1, 2, 3, 3, 2, 1], [3, 2, 1, 0, 1, 2, 3, 2, 1, 0])
    """
    period = 2 * length if twice else max(2 * length - 2, 1)
    folded = places % period
    back = period - twice - folded
    forth = folded < length
    return folded * forth + back * ~forth


# Gaussian filters of any width. A kernel may be wider than the image, so each direction is one
# product with a matrix that has the border mode folded in.


BorderMode = Literal["nearest", "reflect"]


def gaussian_filter(
    images: Tensor, deviation: float, truncate: float = 4.0, border: BorderMode = "nearest"
) -> Tensor:
    """Filter [..., H, W] as scipy.ndimage.gaussian_filter with the same arguments.

    The kernel ends after `truncate` standard deviations. Border mode: repeat the last pixel
    ("nearest"), or mirror with it twice ("reflect").
    """
    if deviation == 0:
        return images
    height, width = images.shape[-2:]
    down = build_smoothing_matrix(height, deviation, truncate, border).to(images)  # [H, H]
    across = build_smoothing_matrix(width, deviation, truncate, border).to(images)  # [W, W]
    return down @ images @ across.T


@lru_cache(maxsize=32)
def build_smoothing_matrix(
    length: int, deviation: float, truncate: float, border: BorderMode
) -> Tensor:
    """Build float64 [length, length]: weight of each pixel (column) in each result (row)."""
    radius = int(truncate * deviation + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / deviation) ** 2)
    rows = np.arange(length)[:, None]
    columns = rows + offsets  # [length, 2 radius + 1]
    columns = (
        columns.clip(0, length - 1) if border == "nearest" else mirror_indices(columns, length)
    )
    matrix = np.zeros((length, length))
    np.add.at(matrix, (rows, columns), weights / weights.sum())
    return torch.from_numpy(matrix)


MAX_MOTION_ANGLE = 45.0  # degrees from horizontal


def gaussian_blur(images: Tensor, draws: PerImageRandom, deviation: float) -> Tensor:
    """Blur with a Gaussian."""
    return gaussian_filter(images, deviation)


def defocus_blur(images: Tensor, draws: PerImageRandom, radius: float, softness: float) -> Tensor:
    """Blur with a disk whose rim is softened by a Gaussian."""
    kernel = make_disk_kernel(radius, softness).to(images)  # [k, k]
    reach = kernel.shape[0] // 2
    planes = images.flatten(0, 1)[:, None]  # [BC, 1, H, W]
    around = F.pad(planes, (reach,) * 4, mode="reflect")
    return F.conv2d(around, kernel[None, None]).view_as(images)


def glass_blur(
    images: Tensor, draws: PerImageRandom, deviation: float, reach: float, rounds: float
) -> Tensor:
    """Blur, swap pixels with their neighbours, and blur again."""
    reach, rounds = int(reach), int(rounds)
    shape = rounds, 2, *images.shape[2:]
    steps = draws.each(lambda own: torch.randint(-reach, reach, shape, generator=own))
    images = gaussian_filter(images, deviation)
    for step in steps.unbind(1):  # [B, 2, H, W]
        images = mix_nearby_pixels(images, step, reach)
    return gaussian_filter(images, deviation)


def motion_blur(images: Tensor, draws: PerImageRandom, radius: float, deviation: float) -> Tensor:
    """Blur along a random direction with half a Gaussian.

    As ImageMagick's MotionBlurImage (MagickCore/effect.c), which ImageNet-C calls: 2 radius + 1
    positions one pixel apart, each rounded to whole pixels; the border pixel is repeated.
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
    """Average the image with its enlargements."""
    # NumPy's rounding decides whether the last one is `farthest` or the one before: here, as there.
    factors = np.arange(1, farthest, step).tolist()
    total = images.clone()
    for factor in factors:
        total += zoom_into_centre(images, factor)
    return total / (len(factors) + 1)


def zoom_into_centre(images: Tensor, factor: float) -> Tensor:
    """Enlarge the centre of [B, C, H, W] bilinearly, corners aligned, to the full size."""
    kept = [math.ceil(side / factor) for side in images.shape[2:]]
    middle = crop_centre(images, kept)
    larger = F.interpolate(
        middle, [round(side * factor) for side in kept], mode="bilinear", align_corners=True
    )
    return crop_centre(larger, images.shape[2:])


def crop_centre(images: Tensor, size: list[int] | torch.Size) -> Tensor:
    """Crop the centre: [B, C, H, W] -> [B, C, *size]."""
    top, left = ((side - kept) // 2 for side, kept in zip(images.shape[2:], size, strict=True))
    return images[:, :, top : top + size[0], left : left + size[1]]


def mix_nearby_pixels(images: Tensor, steps: Tensor, reach: int) -> Tensor:
    """Replace each pixel of [B, C, H, W] by one near it, from the last pixel to the first.

    ImageNet-C's code intends to swap the two, but swaps views of one array, so that one of them is
    lost; its images were made so. A value taken from a pixel that was already replaced is the value
    that this one took before: the chain is followed to its start.

    Args:
        steps: int64 [B, 2, H, W], rows down and columns to the right, in [-reach, reach).
    """
    height, width = images.shape[2:]
    count = height * width
    index = torch.arange(count, device=images.device).view(height, width)
    turn = torch.zeros_like(index, dtype=torch.bool)  # whether a pixel has one: not at the rim
    turn[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    target = torch.where(turn, index + steps[:, 0] * width + steps[:, 1], index)  # [B, H, W]
    # Places below `count` are values after the turns, those from `count` on before them. A later
    # pixel has had its turn, or has none and keeps its value.
    source = torch.where(target > index, target, target + count).flatten(1)  # [B, HW]
    before = (index.flatten() + count).expand(len(source), -1)
    links = torch.cat([source, before], 1)  # [B, 2 HW]
    while bool((links[:, :count] < count).any()):
        links = links.gather(1, links)  # doubles the steps along the chain
    origin = (links[:, :count] - count).view(-1, height, width)
    return gather_pixels(images, origin // width, origin % width)


@lru_cache(maxsize=16)
def make_disk_kernel(radius: float, softness: float) -> Tensor:
    """Make float32 [k, k] of sum 1: a disk smoothed with 3x3 or, above radius 8, 5x5 weights."""
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


# Digital corruptions, and brightness, which ImageNet-C counts as weather.


def shift_brightness(images: Tensor, draws: PerImageRandom, more: float) -> Tensor:
    """Raise the HSV value, which is the largest channel; hue and saturation stay.

    At a given hue and saturation all channels are proportional to the value, and black is grey.
    """
    value = images.amax(1, keepdim=True)  # [B, 1, H, W]
    brighter = (value + more).clamp(0, 1)
    return torch.where(value > 0, images * (brighter / value), brighter)


def reduce_contrast(images: Tensor, draws: PerImageRandom, kept: float) -> Tensor:
    """Move pixels towards the mean of their channel."""
    means = images.mean((2, 3), keepdim=True)  # [B, C, 1, 1]
    return (images - means) * kept + means


def elastic_transform(
    images: Tensor, draws: PerImageRandom, strength: float, deviation: float, shift: float
) -> Tensor:
    """Move three corners by up to `shift` pixels, then every pixel by smoothed noise.

    The displacements of pixels are uniform noise, smoothed, times the strength.
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
    """Solve for float64 [B, 3, 2] that maps (x, y, 1) of a pixel to its source.

    Args:
        moves: [B, 3, 2], of the x and y of three corners of a square about the centre.
    """
    half = min(height, width) // 3
    middle = torch.tensor([width // 2, height // 2], dtype=moves.dtype, device=moves.device)
    signs = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=moves.dtype, device=moves.device)
    corners = middle + half * signs  # [3, 2]
    moved = torch.cat([corners + moves, torch.ones_like(moves[..., :1])], -1)  # [B, 3, 3]
    return torch.linalg.solve(moved, corners.expand_as(moves))


def pixelate(images: Tensor, draws: PerImageRandom, kept: float) -> Tensor:
    """Downscale to this share of the sides, and upscale again."""

    def change(image: Image.Image) -> Image.Image:
        box = Image.Resampling.BOX
        width, height = (max(1, int(side * kept)) for side in image.size)
        return image.resize((width, height), box).resize(image.size, box)

    return apply_with_pillow(images, change)


def jpeg_compression(images: Tensor, draws: PerImageRandom, quality: float) -> Tensor:
    """Compress as JPEG of this quality."""

    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(quality))
        return Image.open(file)

    return apply_with_pillow(images, change)


def apply_with_pillow(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Apply a Pillow operation to each image of [B, C, H, W], C = 3 or 1."""
    levels = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu()  # [B, H, W, C]
    arrays = [array.squeeze(-1) if array.shape[-1] == 1 else array for array in levels.numpy()]
    changed = np.stack([np.asarray(change(Image.fromarray(array))) for array in arrays])
    pixels = torch.from_numpy(changed).view(levels.shape).permute(0, 3, 1, 2)  # [B, C, H, W]
    return pixels.to(images) / 255


# Noises.


def gaussian_noise(images: Tensor, draws: PerImageRandom, deviation: float) -> Tensor:
    """Add sensor noise: normal, independent per channel."""
    return images + deviation * _normal(images, draws)


def shot_noise(images: Tensor, draws: PerImageRandom, photons: float) -> Tensor:
    """Replace values by Poisson counts; white has `photons` on average."""
    rates = (images * photons).cpu()
    counts = [
        torch.poisson(rate, generator=generator)
        for rate, generator in zip(rates, draws.generators(), strict=True)
    ]
    return torch.stack(counts).to(images.device) / photons


def impulse_noise(images: Tensor, draws: PerImageRandom, amount: float) -> Tensor:
    """Set this share of the values to 0 or 1, each equally often."""
    chance = draws.uniform(0, 1, 2, *images.shape[1:])  # [B, 2, C, H, W]: whether, and which
    return torch.where(chance[:, 0] < amount, (chance[:, 1] < 0.5).to(images.dtype), images)


def speckle_noise(images: Tensor, draws: PerImageRandom, deviation: float) -> Tensor:
    """Add normal noise in proportion to the value."""
    return images + images * deviation * _normal(images, draws)


def _normal(images: Tensor, draws: PerImageRandom) -> Tensor:
    shape = images.shape[1:]
    return draws.each(lambda own: torch.randn(shape, generator=own)).to(images.dtype)
