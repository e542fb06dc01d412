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
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, cast

import torch
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.interpret.attention import (
    matmul_without_autocast,
    promote_to_float32,
    require_attention,
    split_into_chunks,
)
from patchwords.models.attention import Attention
from patchwords.models.build import Model
from patchwords.models.checks import check_choice, check_layer_indices
from patchwords.models.vit import Block, ViT

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


# Attention weighted by what it does to one class: which patches speak for the answer.
#
# Chefer, Gur and Wolf, "Generic Attention-model Explainability" (arXiv 2103.15679), Eqs. 5 and 6 for
# self-attention: with the gradient of the class' logit by the attention A, the heads are fused to
# (gradient * A), negative parts dropped, mean over heads; and R <- R + A R, from R = I. (Their
# earlier arXiv 2012.09838 propagates relevances through every layer; that is not done here.)
#
# Sizes: B batch, C channels, H W image, h w grid, K heads, T tokens, L layers.


def gradient_rollout(
    model: Model, images: Tensor, classes: Sequence[int] | Tensor | None = None
) -> Tensor:
    """[B, C, H, W] -> [B, T, T]; `attention.seen_from` of it is the map of the class.

    `classes` are the classes asked about, one per image; by default those that the model answers.
    Rows do not sum to 1. Works where gradients are off, and leaves none behind. The model must be
    in evaluation mode. Raises ConfigError where there is no attention or no such class.
    """
    vit = require_attention(model)
    asked = None if classes is None else resolve_target_classes(classes, len(images), vit)
    parts, done = [], 0
    with torch.inference_mode(False), torch.enable_grad():
        for some in split_into_chunks(vit, images, layers=vit.config.layers):
            part = None if asked is None else asked[done : done + len(some)]
            parts.append(_gradient_rollout_chunk(vit, some.clone(), part))
            done += len(some)
    return torch.cat(parts)


def resolve_target_classes(classes: Sequence[int] | Tensor, images: int, vit: ViT) -> Tensor:
    """-> int64 [B] on the model's device"""
    asked = torch.as_tensor(classes, dtype=torch.int64, device=vit.patch_embed.weight.device)
    count = vit.config.num_classes
    if asked.shape != (images,) or (images and not 0 <= asked.min() <= asked.max() < count):
        raise ConfigError(
            f"classes {asked.tolist()} are not one of 0 to {count - 1} for each of {images} images"
        )
    return asked


def _gradient_rollout_chunk(vit: ViT, images: Tensor, classes: Tensor | None) -> Tensor:
    logits, attentions = forward_with_attention(vit, images)
    chosen = logits.argmax(dim=-1) if classes is None else classes
    # The images of a batch do not see one another, so one sum has the gradients of all.
    score = logits.gather(1, chosen[:, None]).sum()
    gradients = torch.autograd.grad(score, attentions)
    tokens = attentions[0].shape[-1]
    first = promote_to_float32(attentions[0])
    relevance = torch.eye(tokens, dtype=first.dtype, device=first.device).expand(
        len(images), -1, -1
    )
    for attention, gradient in zip(attentions, gradients, strict=True):
        weighed = (
            (promote_to_float32(attention.detach()) * promote_to_float32(gradient))
            .clamp(min=0)
            .mean(dim=1)
        )
        relevance = relevance + matmul_without_autocast(weighed, relevance)  # [B, T, T]
    return relevance


def forward_with_attention(vit: ViT, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """[B, C, H, W] -> logits [B, classes], and A of every layer [B, K, T, T] on the way to them.

    The logits are those of `forward`, to rounding; its fused kernel has no A to differentiate by.
    """
    grid = vit.grid(images)
    tables = vit.positions(grid, images)
    # A leaf that wants gradients, so that there are some for a frozen model, too.
    x = vit.enter(vit.embed_patches(images), tables).detach().requires_grad_()
    attentions = []
    for layer, block in enumerate(vit.encoder.blocks):
        x = vit.encoder.add_positions(layer, x, tables)
        x, attention = _forward_block(cast(Block, block), x, grid)
        attentions.append(attention)
    return vit.forward_head(vit.encoder.norm(x)), attentions


def _forward_block(block: Block, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """[B, T, D] -> [B, T, D] and A; Eqs. 6-8 written out, then the MLP"""
    mixer = cast(Attention, block.mixer)
    z = block.norm1(x)
    attention = mixer.weights(z, grid)  # [B, K, T, T]
    _, _, v = mixer.project(z)  # [B, K, T, Dh]
    x = x + mixer.proj((attention @ v).transpose(1, 2).flatten(2))  # [B, T, D]
    return x + block.mlp(block.norm2(x)), attention
