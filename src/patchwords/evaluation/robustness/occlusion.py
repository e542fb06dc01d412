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

# Where a model looks: the map by which patches are ordered before some are dropped.
#
# Naseer et al. (arXiv 2105.10497, Sec. 3.1) take the attention of DINO. Without it the map is the
# model's own: attention in the last block, where there are heads, else the gradient.
#
# Sizes: B batch, C channels, H W image, h w grid of patches, K heads, T tokens.


LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow's convert("L")


def compute_saliency(images: Tensor, subject: LoadedModel) -> Tensor:
    """[B, C, H, W] of 0..255, any size -> float32 [B, H, W]; larger is more salient.

    The images are brought to the subject's size and channels. With heads it is the attention of
    the last block, averaged over them: what the class token gives to each patch or, without a
    class token, what a patch receives on average. Else see `gradient_times_input`.
    """
    given = fit_to_model_input(images.float(), subject)
    model = subject.model
    if isinstance(model, ViT) and model.config.mixer_traits.has_heads:
        found = last_layer_attention(model, subject.preprocess.normalise(given))
    else:
        found = gradient_times_input(given, subject)
    return interpolate(found[:, None], tuple(images.shape[-2:]), mode="nearest")[:, 0]


def fit_to_model_input(images: Tensor, subject: LoadedModel) -> Tensor:
    """float32 [B, C, H, W] -> as many channels, and pixels, as the subject sees"""
    preprocess = subject.preprocess
    if images.shape[1] == 3 and preprocess.channels == 1:
        weights = torch.tensor(LUMA_WEIGHTS, device=images.device)[:, None, None]
        images = (images * weights).sum(1, keepdim=True)
    images = images.expand(-1, preprocess.channels, -1, -1)
    if tuple(images.shape[-2:]) == preprocess.image_size:
        return images
    return interpolate(images, preprocess.image_size, mode="bilinear", antialias=True)


def last_layer_attention(model: ViT, images: Tensor) -> Tensor:
    """[B, C, H, W], normalised -> [B, h, w]"""
    grid = model.grid(images)
    [(_, weights)] = model.attention(images, [model.config.layers - 1])  # [B, K, T, T]
    prefix = model.config.num_prefix_tokens
    mean = weights.mean(1)  # [B, T, T]
    received = mean[:, 0, prefix:] if prefix else mean.mean(1)  # [B, N]
    return received.unflatten(1, grid)


def gradient_times_input(images: Tensor, subject: LoadedModel) -> Tensor:
    """[B, C, H, W] of 0..255 -> [B, H, W], gradient times input.

    By the first-order expansion it is how much the likeliest class's logit falls where a pixel is
    made black (0), and it is signed.
    """
    with torch.enable_grad():
        given = images.detach().clone().requires_grad_()
        logits = subject.model(subject.preprocess.normalise(given))  # [B, classes]
        [gradient] = torch.autograd.grad(logits.amax(-1).sum(), given)
    return (gradient * images).sum(1)


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
