"""Mean attention distance of each head, in pixels (Sec. 4.5, Appendix D.7, Figs. 7 and 11).

For every head, the distance between the centres of query patch and key patch, weighted by the
attention, averaged over the queries of an image and over images. The paper does not say how the
class token is treated: here it is left out, as query and as key, and each remaining row is divided
by its sum.

Sizes: B batch, C channels, H W image, N patches, T tokens, K heads, L layers, n images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchwords.errors import DataError
from patchwords.interpret.attention import promote_to_float32, require_attention, split_into_chunks
from patchwords.models.build import Model
from patchwords.models.checks import check_layer_indices


@dataclass(frozen=True)
class AttentionDistances:
    """Attention distance of every head on every image."""

    layers: tuple[int, ...]  # [L], from 0
    pixels: np.ndarray  # [n, L, K] float64
    uniform: float  # pixels, of a head that attends to all patches equally

    @property
    def mean(self) -> np.ndarray:
        """Return the mean over the images, [L, K]."""
        return self.pixels.mean(axis=0)

    @property
    def error(self) -> np.ndarray:
        """Return the standard error of the mean, [L, K]; NaN for a single image."""
        n = len(self.pixels)
        if n < 2:
            return np.full(self.pixels.shape[1:], np.nan)
        return self.pixels.std(axis=0, ddof=1) / n**0.5

    def to_dict(self) -> dict[str, Any]:
        """Return the means as JSON values; the standard error of a single image is None."""
        return {
            "images": len(self.pixels),
            "layers": list(self.layers),
            "pixels": self.mean.tolist(),
            "standard_error": [
                [error if math.isfinite(error) else None for error in row]
                for row in self.error.tolist()
            ],
            "uniform": self.uniform,
        }


@torch.no_grad()
def attention_distance(
    model: Model, batches: Iterable[Tensor], layers: Sequence[int] | None = None
) -> AttentionDistances:
    """Measure how far each head looks, over batches of normalised images [B, C, H, W] of one size.

    `layers` defaults to all. Memory does not grow with the number of images or layers. Raises
    ConfigError where the model has no attention or no such layer, DataError without images.
    """
    vit = require_attention(model)
    count = vit.config.layers
    chosen = sorted(
        set(check_layer_indices(list(range(count) if layers is None else layers), count))
    )
    chunks: list[Tensor] = []
    distances = torch.empty(0)
    for batch in batches:
        for chunk in split_into_chunks(vit, batch):
            distances = patch_distances(vit.grid(chunk), vit.config.stride, chunk)
            heads = [
                mean_head_distance(attention, distances, vit.config.num_prefix_tokens)
                for _, attention in vit.attention(chunk, chosen)
            ]
            chunks.append(torch.stack(heads, dim=1).cpu())  # [b, L, K]
    if not chunks:
        raise DataError("attention distance is a mean over images, and there are none")
    return AttentionDistances(
        tuple(chosen), torch.cat(chunks).double().numpy(), float(distances.mean())
    )


def patch_distances(grid: tuple[int, int], stride: int, like: Tensor | None = None) -> Tensor:
    """Return the distance in pixels between the centres of any two patches, [N, N]."""
    device = None if like is None else like.device
    dtype = torch.float32 if like is None else torch.promote_types(like.dtype, torch.float32)
    sides = [torch.arange(side, device=device, dtype=dtype) for side in grid]
    centres = torch.cartesian_prod(*sides).reshape(-1, 2) * stride  # [N, 2], (y, x)
    return (centres[:, None] - centres).square().sum(-1).sqrt()


def mean_head_distance(attention: Tensor, distances: Tensor, prefix: int) -> Tensor:
    """Average distances [N, N] by attention [B, K, T, T] -> [B, K]."""
    heads = []
    for head in attention.unbind(1):  # one by one: no second copy of the whole layer
        patches = promote_to_float32(head[:, prefix:, prefix:])  # [B, N, N]
        total = patches.sum(-1).clamp(min=torch.finfo(patches.dtype).tiny)
        heads.append(((patches * distances).sum(-1) / total).mean(-1))
    return torch.stack(heads, dim=1)
