"""Permutation of patches: the image is cut into g x g tiles, which are shuffled.

Naseer et al. (arXiv 2105.10497, Sec. 3.3). What a model keeps at a finer grid it does not owe to
the arrangement of the parts. Unlike the authors' code, which draws one order for a batch, each
image has its own.

Sizes: B batch, C channels, H W image, g x g tiles of th x tw pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from patchwords.evaluate.robustness.disturbance import Perturbation, PerturbationBatch
from patchwords.evaluate.subject import LoadedModel
from patchwords.model.vit import ViT
from patchwords.noise import numpy_generator

TILES_PER_SIDE = (2, 4, 7, 8, 14, 16, 28)  # tiles to a side, where they divide the image


def list_tile_grids(subject: LoadedModel) -> tuple[float, ...]:
    """Tiles to a side that divide the image: the usual ones, the ViT's own grid and twice as fine.

    A number that does not divide the image is left out: to resize the image for it would change
    more than the order.
    """
    size = subject.preprocess.image_size
    wanted = set(TILES_PER_SIDE)
    if isinstance(subject.model, ViT):
        rows, _ = subject.model.config.grid_of(size)
        wanted |= {rows, 2 * rows}
    return tuple(float(side) for side in sorted(wanted - {1}) if not any(n % side for n in size))


def shuffle_tiles_randomly(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """uint8 [B, C, H, W], the tiles of each image in an order of its own."""
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
