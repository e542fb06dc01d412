"""Occlusion by dropped patches: PatchDrop of Naseer et al. (arXiv 2105.10497, Sec. 3.1).

An image is cut into a grid, and a share of the patches becomes black: 0 in pixels, before
normalisation, as in the authors' code (evaluate.py). What is dropped at one level is dropped at
every higher one. Unlike there, each image has its own order; and the salient patches are those of
`compute_saliency`, by number of patches, where the authors drop a share of DINO's attention.

Sizes: B batch, C channels, H W image, g x g patches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from patchwords.errors import ConfigError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness.perturbation import (
    Perturbation,
    PerturbationBatch,
    grid_cells,
    mean_per_cell,
)
from patchwords.models.vit import ViT
from patchwords.rng import numpy_generator

# Saliency: the map that orders patches. Naseer et al. (arXiv 2105.10497, Sec. 3.1) take the attention
# of DINO; here it is the model's own: attention of the last block if it has heads, else the gradient.
#
# Sizes: B batch, C channels, H W image, h w grid of patches, K heads, T tokens.


LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow's convert("L")


def compute_saliency(images: Tensor, loaded: LoadedModel) -> Tensor:
    """Compute saliency: [B, C, H, W] of 0..255, any size -> float32 [B, H, W].

    The images are resized to the model's size and channels. For models with heads it is the
    attention of the last block, averaged over heads: from the class token to each patch or, without
    a class token, to each patch on average. Otherwise see `gradient_times_input`.
    """
    fitted = fit_to_model_input(images.float(), loaded)
    model = loaded.model
    if isinstance(model, ViT) and model.config.mixer_traits.has_heads:
        saliency = last_layer_attention(model, loaded.preprocess.normalise(fitted))
    else:
        saliency = gradient_times_input(fitted, loaded)
    return interpolate(saliency[:, None], tuple(images.shape[-2:]), mode="nearest")[:, 0]


def fit_to_model_input(images: Tensor, loaded: LoadedModel) -> Tensor:
    """Resize and convert to the model's size and channels -> float32 [B, C, H, W]."""
    preprocess = loaded.preprocess
    if images.shape[1] == 3 and preprocess.channels == 1:
        weights = torch.tensor(LUMA_WEIGHTS, device=images.device)[:, None, None]
        images = (images * weights).sum(1, keepdim=True)
    images = images.expand(-1, preprocess.channels, -1, -1)
    if tuple(images.shape[-2:]) == preprocess.image_size:
        return images
    return interpolate(images, preprocess.image_size, mode="bilinear", antialias=True)


def last_layer_attention(model: ViT, images: Tensor) -> Tensor:
    """[B, C, H, W], normalised -> [B, h, w], attention of the last block"""
    grid = model.grid(images)
    [(_, weights)] = model.attention(images, [model.config.layers - 1])  # [B, K, T, T]
    prefix = model.config.num_prefix_tokens
    mean = weights.mean(1)  # [B, T, T]
    received = mean[:, 0] if model.config.has_class_token else mean[:, prefix:].mean(1)  # [B, T]
    return received[:, prefix:].unflatten(1, grid)


def gradient_times_input(images: Tensor, loaded: LoadedModel) -> Tensor:
    """[B, C, H, W] of 0..255 -> [B, H, W], gradient times input.

    To first order, how much the logit of the predicted class falls when a pixel becomes black (0);
    signed.
    """
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        logits = loaded.model(loaded.preprocess.normalise(pixels))  # [B, classes]
        [gradient] = torch.autograd.grad(logits.amax(-1).sum(), pixels)
    return (gradient * images).sum(1)


DEFAULT_GRID = 14  # patches per side: those of 16 pixels in an image of 224
MIN_PATCH_PIXELS = 8  # pixels of a patch; if the grid's would be smaller ...
SMALL_IMAGE_PATCH_PIXELS = 4  # ... this many, as in models for small images
OCCLUSION_LEVELS = tuple(range(10, 101, 10))  # percent of the patches

PatchOrder = Callable[
    [PerturbationBatch, int, int], Tensor
]  # (batch, grid, seed) -> int64 [B, g * g]


def build_occlusions(
    grid: int | None = None, source: LoadedModel | None = None
) -> tuple[Perturbation, ...]:
    """Build the perturbations that drop random, salient and non-salient patches.

    Args:
        grid: patches per side; default: `choose_occlusion_grid` of each model's images.
        source: model whose saliency orders the patches for all; default: each model its own.
    """
    shared = f" (by {source.name})" if source else ""

    def salient(batch: PerturbationBatch, patches: int, seed: int) -> Tensor:
        return order_by_saliency(batch, patches, source or batch.loaded)

    def non_salient(batch: PerturbationBatch, patches: int, seed: int) -> Tensor:
        return order_by_saliency(batch, patches, source or batch.loaded).flip(1)

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
    """Make the change that drops patches in an order."""

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
    """Choose patches per side: 14, as in the paper, or fewer for small images."""
    return (
        DEFAULT_GRID
        if min(size) >= DEFAULT_GRID * MIN_PATCH_PIXELS
        else max(1, min(size) // SMALL_IMAGE_PATCH_PIXELS)
    )


def drop_patches(images: Tensor, order: Tensor, level: float) -> Tensor:
    """Set the first `level` percent (rounded down) of the ordered patches to 0.

    Args:
        images: [B, C, H, W].
        order: int64 [B, g * g], patch numbers, row by row; the first is dropped first.
    """
    patches = order.shape[1]
    gone = torch.zeros_like(order, dtype=torch.bool)  # [B, g * g]
    gone.scatter_(1, order[:, : int(level * patches / 100)], True)
    cells = grid_cells((images.shape[2], images.shape[3]), round(patches**0.5), images.device)
    return images.masked_fill(gone[:, cells][:, None], 0)  # the mask is [B, 1, H, W]


def order_randomly(batch: PerturbationBatch, grid: int, seed: int) -> Tensor:
    """Order the patches randomly, by seed and image -> int64 [B, g * g]."""
    orders = [
        torch.from_numpy(numpy_generator(seed, "occlusion", index).permutation(grid * grid))
        for index in batch.indices
    ]
    return torch.stack(orders).to(batch.images.device)


def order_by_saliency(batch: PerturbationBatch, grid: int, source: LoadedModel) -> Tensor:
    """Order the patches by saliency -> int64 [B, g * g], the most salient first."""

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
