"""Attention Rollout: how much of each patch there is in a token after several layers.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (arXiv 2005.00928), which the paper
uses for Figs. 6 and 14 (Appendix D.8). A token's new value is half what it attends to and half
itself, by the residual connection: A' = (A + I) / 2. The product of A' over the layers says how
values would have mixed if attention were all that moves them. MLPs, values and signs take no part,
so it is a picture of mixing and no proof of why: `truth` measures that.

Sizes: B batch, C channels, H W image, K heads, T tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.inspect.attention import (
    matmul_without_autocast,
    promote_to_float32,
    require_attention,
    split_into_chunks,
)
from patchwords.model.checks import check_choice
from patchwords.model.family import Model
from patchwords.model.images import check_layer_indices

HeadFusion = Literal["mean", "max", "min"]
HEAD_FUSIONS = ("mean", "max", "min")


@torch.no_grad()
def attention_rollout(
    model: Model, images: Tensor, start: int = 0, end: int = -1, fusion: HeadFusion = "mean"
) -> Tensor:
    """[B, C, H, W] -> [B, T, T]: row i is what token i is made of; rows sum to 1.

    From layer `start` to layer `end`, both included, counted from 0, or from the end if negative.
    The map of the class token is `attention.seen_from` of this. Raises ConfigError where there is
    no attention, no such layer, or `start` lies behind `end`.
    """
    vit = require_attention(model)
    first, last = check_layer_indices([start, end], vit.config.layers)
    if first > last:
        raise ConfigError(f"rollout from layer {first} to {last}: the first must not be deeper")
    parts: list[Tensor] = []
    for some in split_into_chunks(vit, images):
        layers = vit.attention(some, range(first, last + 1))
        parts += deque(rollout_layers((attention for _, attention in layers), fusion), maxlen=1)
    return torch.cat(parts)


def rollout_layers(layers: Iterable[Tensor], fusion: HeadFusion = "mean") -> Iterator[Tensor]:
    """Attention of layer after layer, [B, K, T, T] each -> [B, T, T] after each of them"""
    rolled: Tensor | None = None
    for attention in layers:
        step = add_residual(fuse_heads(promote_to_float32(attention), fusion))
        rolled = step if rolled is None else matmul_without_autocast(step, rolled)
        yield rolled


def fuse_heads(attention: Tensor, fusion: HeadFusion = "mean") -> Tensor:
    """[B, K, T, T] -> [B, T, T]: one number for all heads; the paper takes the mean"""
    check_choice("fusion", fusion, HEAD_FUSIONS)
    if fusion == "mean":
        return attention.mean(dim=1)
    return attention.amax(dim=1) if fusion == "max" else attention.amin(dim=1)


def add_residual(fused: Tensor) -> Tensor:
    """[B, T, T] -> [B, T, T]: (A + I) with rows that sum to 1; half and half where A's did"""
    mixed = fused + torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
    return mixed / mixed.sum(dim=-1, keepdim=True)
