"""Shuffled tiles, and texture removal by smoothing or by shuffling pixels.

Tiles: the image is cut into g x g tiles, which are permuted (Naseer et al., arXiv 2105.10497, Sec.
3.3). Accuracy kept at a finer grid does not rest on the arrangement of the parts. Unlike the
authors' code, which draws one order for a batch, each image has its own.

Sizes: B batch, C channels, H W image, g x g tiles of th x tw pixels, r radius of a window.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness.perturbation import (
    Perturbation,
    PerturbationBatch,
    square_cells,
)
from patchwords.models.vit import ViT
from patchwords.rng import numpy_generator

TILES_PER_SIDE = (2, 4, 7, 8, 14, 16, 28)  # tiles per side, if they divide the image


def list_tile_grids(loaded: LoadedModel) -> tuple[float, ...]:
    """List tiles per side that divide the image: usual ones, the ViT's own grid, twice as fine.

    Numbers that do not divide the image are left out: resizing the image would change more than the
    order.
    """
    size = loaded.preprocess.image_size
    wanted = set(TILES_PER_SIDE)
    if isinstance(loaded.model, ViT):
        rows, _ = loaded.model.config.grid_of(size)
        wanted |= {rows, 2 * rows}
    return tuple(float(side) for side in sorted(wanted - {1}) if not any(n % side for n in size))


def shuffle_tiles_randomly(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """Shuffle the tiles of each image of uint8 [B, C, H, W] in its own order."""
    side = int(level)
    orders = [
        torch.from_numpy(numpy_generator(seed, "permutation", side, index).permutation(side**2))
        for index in batch.indices
    ]
    return shuffle_tiles(batch.images, torch.stack(orders).to(batch.images.device))


def shuffle_tiles(images: Tensor, orders: Tensor) -> Tensor:
    """[B, C, H, W], int64 [B, g * g] -> [B, C, H, W]; tile i of the result is tile orders[i]."""
    side = round(orders.shape[1] ** 0.5)
    _, channels, height, width = images.shape
    tile = height // side, width // side
    cut = images.reshape(-1, channels, side, tile[0], side, tile[1])
    tiles = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [B, g * g, C, th, tw]
    number = torch.arange(len(tiles), device=images.device)[:, None]  # [B, 1]
    moved = tiles[number, orders].unflatten(1, (side, side))  # [B, g, g, C, th, tw]
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(images.shape)


TILE_PERMUTATION = Perturbation(
    name="permutation",
    family="permutation",
    title="Tiles shuffled",
    x_label="tiles to a side",
    levels=(),
    levels_for=list_tile_grids,
    clean=1.0,
    log_x=True,
    seeds=True,
    change=shuffle_tiles_randomly,
    published=(
        "Naseer et al. (2021, Sec. 3.3, Figs. 10 and 11; a figure only): DeiT keeps its accuracy "
        "better than CNNs, and best where the tiles are the model's own patches."
    ),
)


# Texture removal without downloads: two stand-ins for Stylized-ImageNet.
#
# Naseer et al. (arXiv 2105.10497, Sec. 3.2) use images in the style of paintings (Geirhos et al.,
# arXiv 1811.12231). Here fine detail is removed and shapes stay, in two ways: edge-preserving
# smoothing, and pixels shuffled within small squares, which keeps all colours and no finer texture.


SMOOTHING_CONTRASTS = (10.0, 20.0, 40.0, 80.0, 160.0)  # of 255
SQUARE_SIDES = (2, 4, 8, 16, 32)  # pixels
MIN_SQUARES_PER_SIDE = 4  # squares per side of the image, so that shapes remain


def smooth_texture(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """Smooth away detail of less contrast than the level -> float32 [B, C, H, W]."""
    return guided_filter(batch.images.float(), choose_smoothing_radius(batch.images), level**2)


def choose_smoothing_radius(images: Tensor) -> int:
    """Choose the window radius: 8 pixels in an image of 224, and in proportion."""
    return max(1, round(min(images.shape[-2:]) / 28))


def guided_filter(images: Tensor, radius: int, epsilon: float) -> Tensor:
    """Filter float [B, C, H, W], each channel guided by itself.

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
    """Average [B, C, H, W] over windows of (2r + 1)^2, cut off at the border."""
    side = 2 * radius + 1
    sums, counts = (
        avg_pool2d(pad(x, (radius,) * 4), side, stride=1)
        for x in (images, images.new_ones(1, 1, *images.shape[-2:]))
    )
    return sums / counts


def list_square_sides(loaded: LoadedModel) -> tuple[float, ...]:
    """List sides of squares that leave at least four of them per side of the image."""
    shortest = min(loaded.preprocess.image_size)
    return tuple(float(side) for side in SQUARE_SIDES if side * MIN_SQUARES_PER_SIDE <= shortest)


def shuffle_within_squares(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """Shuffle the pixels within squares of `level` pixels -> uint8 [B, C, H, W].

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
