"""Mean attention distance: how far, in pixels, a head looks (Sec. 4.5, Appendix D.7, Figs. 7, 11).

For every head, the distance between the centres of query patch and key patch, weighted by the
attention, averaged over the queries of an image and over images. The paper does not say what
becomes of the class token: here it is left out, as query and as key, and each row of what remains
is divided by its sum.

Sizes: B batch, C channels, H W image, N patches, T tokens, K heads, L layers, n images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patchwords.errors import DataError
from patchwords.interpret.attention import promote_to_float32, require_attention, split_into_chunks
from patchwords.models.build import Model
from patchwords.models.checks import check_layer_indices


@dataclass(frozen=True)
class AttentionDistances:
    """What every head measured on every image."""

    layers: tuple[int, ...]  # [L], from 0
    pixels: np.ndarray  # [n, L, K] float64
    uniform: float  # pixels, of a head that looks at all patches alike

    @property
    def mean(self) -> np.ndarray:
        """[L, K], over the images"""
        return self.pixels.mean(axis=0)

    @property
    def error(self) -> np.ndarray:
        """[L, K], the standard error of the mean; NaN for a single image"""
        n = len(self.pixels)
        if n < 2:
            return np.full(self.pixels.shape[1:], np.nan)
        return self.pixels.std(axis=0, ddof=1) / n**0.5


@torch.no_grad()
def attention_distance(
    model: Model, batches: Iterable[Tensor], layers: Sequence[int] | None = None
) -> AttentionDistances:
    """Images as the model takes them, [B, C, H, W] each, all of one size -> distances in pixels.

    Layers are those asked for, or all. The attention of one layer of a few images is in memory at
    a time, however many images and layers there are. Raises ConfigError where there is no attention
    or no such layer, DataError without images.
    """
    vit = require_attention(model)
    count = vit.config.layers
    wanted = sorted(
        set(check_layer_indices(list(range(count) if layers is None else layers), count))
    )
    measured: list[Tensor] = []
    between = torch.empty(0)
    for batch in batches:
        for some in split_into_chunks(vit, batch):
            between = patch_distances(vit.grid(some), vit.config.stride, some)
            heads = [
                mean_head_distance(attention, between, vit.config.num_prefix_tokens)
                for _, attention in vit.attention(some, wanted)
            ]
            measured.append(torch.stack(heads, dim=1).cpu())  # [b, L, K]
    if not measured:
        raise DataError("attention distance is a mean over images, and there are none")
    return AttentionDistances(
        tuple(wanted), torch.cat(measured).double().numpy(), float(between.mean())
    )


def patch_distances(grid: tuple[int, int], stride: int, like: Tensor | None = None) -> Tensor:
    """-> [N, N], pixels between the centres of patches; `stride` is from one to the next"""
    device = None if like is None else like.device
    dtype = torch.float32 if like is None else torch.promote_types(like.dtype, torch.float32)
    sides = [torch.arange(side, device=device, dtype=dtype) for side in grid]
    centres = torch.cartesian_prod(*sides).reshape(-1, 2) * stride  # [N, 2], (y, x)
    return (centres[:, None] - centres).square().sum(-1).sqrt()


def mean_head_distance(attention: Tensor, between: Tensor, prefix: int) -> Tensor:
    """[B, K, T, T], pixels [N, N] -> [B, K]"""
    heads = []
    for head in attention.unbind(1):  # one by one: no second copy of the whole layer
        patches = promote_to_float32(head[:, prefix:, prefix:])  # [B, N, N]
        given = patches.sum(-1).clamp(min=torch.finfo(patches.dtype).tiny)
        heads.append(((patches * between).sum(-1) / given).mean(-1))
    return torch.stack(heads, dim=1)
