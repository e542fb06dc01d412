"""Occlusion by dropped patches: PatchDrop of Naseer et al. (arXiv 2105.10497, Sec. 3.1).

An image is cut into a grid, and a share of the patches becomes black: 0 in pixels, before they are
normalised, as in the authors' code (evaluate.py). What is dropped at one level is dropped at every
higher one. Unlike there, each image has an order of its own; and the salient patches are those of
`compute_saliency`, by number of patches, where the authors drop a share of DINO's attention.

Sizes: B batch, C channels, H W image, g x g patches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.evaluate.robustness.disturbance import Perturbation, PerturbationBatch
from patchwords.evaluate.robustness.saliency import compute_saliency
from patchwords.evaluate.robustness.tiles import grid_cells, mean_per_cell
from patchwords.evaluate.subject import LoadedModel
from patchwords.noise import numpy_generator

DEFAULT_GRID = 14  # patches to a side: those of 16 pixels in an image of 224
MIN_PATCH_PIXELS = 8  # pixels of a patch; where the grid's would be smaller ...
SMALL_IMAGE_PATCH_PIXELS = 4  # ... they are of so many pixels, as in models for small images
OCCLUSION_LEVELS = tuple(range(10, 101, 10))  # percent of the patches

PatchOrder = Callable[
    [PerturbationBatch, int, int], Tensor
]  # (batch, grid, seed) -> int64 [B, g * g]


def build_occlusions(
    grid: int | None = None, source: LoadedModel | None = None
) -> tuple[Perturbation, ...]:
    """Random, salient and non-salient patches dropped.

    Args:
        grid: patches to a side; none given: `choose_occlusion_grid` of each subject's images.
        source: whose saliency orders the patches of all subjects; none given: each its own.
    """
    shared = f" (by {source.name})" if source else ""

    def salient(batch: PerturbationBatch, patches: int, seed: int) -> Tensor:
        return order_by_saliency(batch, patches, source or batch.subject)

    def non_salient(batch: PerturbationBatch, patches: int, seed: int) -> Tensor:
        return order_by_saliency(batch, patches, source or batch.subject).flip(1)

    kinds: tuple[tuple[str, str, str, PatchOrder, bool], ...] = (
        ("random", "Random patches dropped", PUBLISHED_RANDOM_OCCLUSION, order_randomly, True),
        (
            "salient",
            f"Salient patches dropped{shared}",
            PUBLISHED_SALIENT_OCCLUSION,
            salient,
            False,
        ),
        (
            "non-salient",
            f"Non-salient patches dropped{shared}",
            PUBLISHED_SALIENT_OCCLUSION,
            non_salient,
            False,
        ),
    )
    return tuple(
        Perturbation(
            name=f"occlusion-{kind}",
            family="occlusion",
            title=title,
            x_label="patches dropped, %",
            levels=OCCLUSION_LEVELS,
            published=published,
            change=make_patch_drop(order, grid),
            seeds=seeds,
        )
        for kind, title, published, order, seeds in kinds
    )


def make_patch_drop(
    order: PatchOrder, grid: int | None
) -> Callable[[PerturbationBatch, float, int], Tensor]:
    """The change that drops patches in an order."""

    def change(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
        height, width = batch.images.shape[-2:]
        side = grid or choose_occlusion_grid((height, width))
        if side > min(height, width):
            raise ConfigError(
                f"--grid {side}: images of {width}x{height} pixels have not that many patches to a "
                f"side; give {min(height, width)} or less"
            )
        return drop_patches(batch.images, order(batch, side, seed), level)

    return change


def choose_occlusion_grid(size: tuple[int, int]) -> int:
    """Patches to a side: 14, as in the paper, and fewer in images too small for that."""
    return (
        DEFAULT_GRID
        if min(size) >= DEFAULT_GRID * MIN_PATCH_PIXELS
        else max(1, min(size) // SMALL_IMAGE_PATCH_PIXELS)
    )


def drop_patches(images: Tensor, order: Tensor, level: float) -> Tensor:
    """The first `level` percent (rounded down) of the patches in the order become 0.

    Args:
        images: [B, C, H, W].
        order: int64 [B, g * g], patches by number, row after row, the first to be dropped first.
    """
    patches = order.shape[1]
    gone = torch.zeros_like(order, dtype=torch.bool)  # [B, g * g]
    gone.scatter_(1, order[:, : int(level * patches / 100)], True)
    cells = grid_cells((images.shape[2], images.shape[3]), round(patches**0.5), images.device)
    return images.masked_fill(gone[:, cells][:, None], 0)  # the mask is [B, 1, H, W]


def order_randomly(batch: PerturbationBatch, grid: int, seed: int) -> Tensor:
    """int64 [B, g * g], an order for each image, drawn from the seed and the image's place."""
    orders = [
        torch.from_numpy(numpy_generator(seed, "occlusion", index).permutation(grid * grid))
        for index in batch.indices
    ]
    return torch.stack(orders).to(batch.images.device)


def order_by_saliency(batch: PerturbationBatch, grid: int, source: LoadedModel) -> Tensor:
    """int64 [B, g * g], the most salient patch first."""

    def rank() -> Tensor:
        means = mean_per_cell(compute_saliency(batch.images, source), grid)
        return means.abs().argsort(dim=1, descending=True, stable=True)

    return batch.once(f"saliency of {source.name} on {grid}", rank)


PUBLISHED_RANDOM_OCCLUSION = (
    "Naseer et al. (2021, Sec. 3.1; ImageNet, 14x14 patches, mean of 5 runs): with 50 % dropped at "
    "random ResNet-50 keeps 0.1 % and DeiT-S 70 %; with 80 % CNNs are at 0 and DeiT as high as "
    "60 %; with 90 % DeiT-B 37 %."
)
PUBLISHED_SALIENT_OCCLUSION = (
    "Naseer et al. (2021, Sec. 3.1) order patches by DINO's attention and give this "
    "as a figure only; here it is a model's own attention or gradient."
)
