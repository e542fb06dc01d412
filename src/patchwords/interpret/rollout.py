"""Attention Rollout, plain and weighted by gradients.

Attention Rollout: Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (arXiv
2005.00928), which the paper uses for Figs. 6 and 14 (Appendix D.8). A token's new value is half
what it attends to and half itself, by the residual connection: A' = (A + I) / 2. The product of A'
over the layers says how values would have mixed if attention alone moved them. MLPs, values and
signs are ignored, so a map shows mixing and does not prove why the model answered as it did:
`interpret.faithfulness` measures that.

Gradient rollout: Chefer, Gur and Wolf, "Generic Attention-model Explainability" (arXiv 2103.15679),
Eqs. 5 and 6 for self-attention. With the gradient of the class' logit by the attention A, heads are
fused to (gradient * A), negative parts dropped, mean over heads; and R <- R + A R, from R = I.
(Their earlier arXiv 2012.09838, which propagates relevances through every layer, is not used.)

Sizes: B batch, C channels, H W image, h w grid, K heads, Dh head width, T tokens, D width.
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
    """Multiply the attention of several layers: [B, C, H, W] -> [B, T, T], rows sum to 1.

    Row i says which patches token i is made of; `extract_query_map` selects the map of a query.
    Layers run from `start` to `end`, both included, negative from the end. Raises ConfigError where
    the model has no attention or no such layer, or where `start` is deeper than `end`.
    """
    vit = require_attention(model)
    first, last = check_layer_indices([start, end], vit.config.layers)
    if first > last:
        raise ConfigError(f"rollout from layer {first} to {last}: the first must not be deeper")
    chunks: list[Tensor] = []
    for chunk in split_into_chunks(vit, images):
        layers = vit.attention(chunk, range(first, last + 1))
        chunks += deque(rollout_layers((attention for _, attention in layers), fusion), maxlen=1)
    return torch.cat(chunks)


def rollout_layers(layers: Iterable[Tensor], fusion: HeadFusion = "mean") -> Iterator[Tensor]:
    """Yield the rollout [B, T, T] after each layer's attention [B, K, T, T]."""
    rolled: Tensor | None = None
    for attention in layers:
        step = add_residual(fuse_heads(promote_to_float32(attention), fusion))
        rolled = step if rolled is None else matmul_without_autocast(step, rolled)
        yield rolled


def fuse_heads(attention: Tensor, fusion: HeadFusion = "mean") -> Tensor:
    """Fuse the heads: [B, K, T, T] -> [B, T, T]; the paper takes the mean."""
    check_choice("fusion", fusion, HEAD_FUSIONS)
    if fusion == "mean":
        return attention.mean(dim=1)
    return attention.amax(dim=1) if fusion == "max" else attention.amin(dim=1)


def add_residual(fused: Tensor) -> Tensor:
    """Add the residual connection: A + I with rows that sum to 1, [B, T, T]."""
    mixed = fused + torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def gradient_rollout(
    model: Model, images: Tensor, classes: Sequence[int] | Tensor | None = None
) -> Tensor:
    """Compute how much each patch supports a class: [B, C, H, W] -> [B, T, T].

    `classes` has one class per image; default: the model's answers. `extract_query_map` selects
    the map of a query; rows do not sum to 1. Works under no_grad, and leaves no gradients behind.
    The model must be in evaluation mode. Raises ConfigError where the model has no attention or no
    such class.
    """
    vit = require_attention(model)
    targets = None if classes is None else resolve_target_classes(classes, len(images), vit)
    chunks, start = [], 0
    with torch.inference_mode(False), torch.enable_grad():
        for chunk in split_into_chunks(vit, images, layers=vit.config.layers):
            end = start + len(chunk)
            target = None if targets is None else targets[start:end]
            chunks.append(_gradient_rollout_chunk(vit, chunk.clone(), target))
            start = end
    return torch.cat(chunks)


def resolve_target_classes(classes: Sequence[int] | Tensor, images: int, vit: ViT) -> Tensor:
    """Convert one class per image to int64 [B] on the model's device."""
    targets = torch.as_tensor(classes, dtype=torch.int64, device=vit.patch_embed.weight.device)
    count = vit.config.num_classes
    if targets.shape != (images,) or (images and not 0 <= targets.min() <= targets.max() < count):
        raise ConfigError(
            f"classes {targets.tolist()} are not one of 0 to {count - 1} for each of {images} images"
        )
    return targets


def _gradient_rollout_chunk(vit: ViT, images: Tensor, classes: Tensor | None) -> Tensor:
    logits, attentions = forward_with_attention(vit, images)
    targets = logits.argmax(dim=-1) if classes is None else classes
    # Images of a batch do not influence one another, so one sum has the gradients of all.
    score = logits.gather(1, targets[:, None]).sum()
    gradients = torch.autograd.grad(score, attentions)
    tokens = attentions[0].shape[-1]
    first = promote_to_float32(attentions[0])
    identity = torch.eye(tokens, dtype=first.dtype, device=first.device)
    relevance = identity.expand(len(images), -1, -1)
    for attention, gradient in zip(attentions, gradients, strict=True):
        product = promote_to_float32(attention.detach()) * promote_to_float32(gradient)
        weighted = product.clamp(min=0).mean(dim=1)  # [B, T, T]
        relevance = relevance + matmul_without_autocast(weighted, relevance)  # [B, T, T]
    return relevance


def forward_with_attention(vit: ViT, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Compute logits [B, classes] and the attention of every layer, [B, K, T, T], with gradients.

    Equals `forward` to rounding; its fused kernel has no attention to differentiate by.
    """
    grid = vit.grid(images)
    tables = vit.positions(grid, images)
    # A leaf that requires gradients, so that a frozen model has some, too.
    x = vit.enter(vit.embed_patches(images), tables).detach().requires_grad_()
    attentions = []
    for layer, block in enumerate(vit.encoder.blocks):
        x = vit.encoder.add_positions(layer, x, tables)
        x, attention = _forward_block(cast(Block, block), x, grid)
        attentions.append(attention)
    return vit.forward_head(vit.encoder.norm(x)), attentions


def _forward_block(block: Block, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Apply a block: [B, T, D] -> [B, T, D] and its attention; Eqs. 6-8 written out."""
    mixer = cast(Attention, block.mixer)
    z = block.norm1(x)
    attention = mixer.weights(z, grid)  # [B, K, T, T]
    _, _, v = mixer.project(z)  # [B, K, T, Dh]
    x = x + mixer.proj((attention @ v).transpose(1, 2).flatten(2))  # [B, T, D]
    return x + block.mlp(block.norm2(x)), attention
