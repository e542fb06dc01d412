"""Attention maps of a ViT by layer and head, and the similarity of its tokens.

Only the attention of one layer is in memory at a time.

Sizes: B batch, C channels, H W image, h w grid, N = h*w patches, T tokens, D width, K heads, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from patchwords.errors import ConfigError
from patchwords.models.build import Model
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT

# (row, column) of a patch; None: the class token, or the mean over the patches without one
QueryPatch = tuple[int, int] | None
# 128 MiB of float32 attention at a time, and about three times that while it is computed
MAX_ATTENTION_ELEMENTS = 2**25
MAX_CHUNK_IMAGES = 32


def require_vit(model: Model) -> ViT:
    """Return the model as a ViT; raise ConfigError for a ResNet, which has no tokens."""
    if isinstance(model, ViT):
        return model
    raise ConfigError(
        "a ResNet has no patches that attend to one another, so no attention can be shown: its "
        "filters can, without images, and with images those that are nearest in its features"
    )


def require_attention(model: Model) -> ViT:
    """Return the model as a ViT; raise ConfigError where its mixer has no attention."""
    vit = require_vit(model)
    if vit.config.mixer_traits.has_heads:
        return vit
    raise ConfigError(
        f"mixer {vit.config.mixer!r} has no attention to show: filters and positions can be "
        "shown, without images"
    )


def choose_chunk_size(config: ViTConfig, grid: tuple[int, int], layers: int = 1) -> int:
    """Return how many images keep the attention of `layers` below MAX_ATTENTION_ELEMENTS."""
    tokens = grid[0] * grid[1] + config.num_prefix_tokens
    return max(
        1, min(MAX_CHUNK_IMAGES, MAX_ATTENTION_ELEMENTS // (layers * config.heads * tokens**2))
    )


def split_into_chunks(model: ViT, images: Tensor, layers: int = 1) -> Iterator[Tensor]:
    """Yield [B, C, H, W] in chunks whose attention fits in memory."""
    size = choose_chunk_size(model.config, model.grid(images), layers)
    return iter(images.split(size))


@torch.no_grad()
def attention_maps(
    model: Model,
    images: Tensor,
    layers: Sequence[int] | None = None,
    query: QueryPatch = None,
) -> Tensor:
    """Compute how much the query attends to each patch: [B, C, H, W] -> [B, L, K, h, w].

    Args:
        layers: from 0, negative from the end; default: all. The result is ordered by depth.
        query: a patch; default: the class token or, without one (classifiers gap and map), the
            mean over all patches as queries.

    With a class token the weights of a map sum to less than 1: the class token's own is left out.
    Raises ConfigError where the model has no attention, or no such layer or patch.
    """
    vit = require_attention(model)
    chunks = []
    for chunk in split_into_chunks(vit, images):
        grid = vit.grid(chunk)
        maps = [
            extract_query_map(
                promote_to_float32(attention),
                grid,
                vit.config.num_prefix_tokens,
                query,
                vit.config.has_class_token,
            )
            for _, attention in vit.attention(chunk, layers)
        ]
        chunks.append(torch.stack(maps, dim=1))  # [b, L, K, h, w]
    return torch.cat(chunks)


def extract_query_map(
    matrix: Tensor,
    grid: tuple[int, int],
    prefix: int,
    query: QueryPatch = None,
    class_token: bool = True,
) -> Tensor:
    """Select the query's weights of the patches: [..., T, T] -> [..., h, w]; see `attention_maps`.

    `class_token` says whether the first of the prefix tokens is one; registers are no queries.
    """
    if query is not None:
        row = matrix[..., prefix + find_patch_index(query, grid), :]
    elif prefix and class_token:
        row = matrix[..., 0, :]
    else:
        row = matrix[..., prefix:, :].mean(dim=-2)
    return row[..., prefix:].unflatten(-1, grid)


def find_patch_index(query: tuple[int, int], grid: tuple[int, int]) -> int:
    """Return a patch's index in raster order; raise ConfigError for one outside the grid."""
    row, column = query
    if 0 <= row < grid[0] and 0 <= column < grid[1]:
        return row * grid[1] + column
    raise ConfigError(
        f"patch {row} {column} is not on the grid of {grid[0]}x{grid[1]}: rows are 0 to "
        f"{grid[0] - 1}, columns 0 to {grid[1] - 1}"
    )


def check_heads(heads: Sequence[int], count: int) -> list[int]:
    """Resolve negative head indices; raise ConfigError for a head that does not exist."""
    for head in heads:
        if not -count <= head < count:
            raise ConfigError(
                f"head {head} does not exist: this model has {count}, 0 to {count - 1}"
            )
    return [head % count for head in heads]


def promote_to_float32(attention: Tensor) -> Tensor:
    """Convert to float32 or wider: rows in half precision do not sum to 1."""
    return attention.to(torch.promote_types(attention.dtype, torch.float32))


def matmul_without_autocast(left: Tensor, right: Tensor) -> Tensor:
    """Multiply in the operands' precision, also under autocast: rounding grows with depth."""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


@torch.no_grad()
def token_similarity(model: Model, images: Tensor) -> Tensor:
    """Compute each patch token's cosine similarity to the class token: -> [B, L, h, w].

    Layer l is the output of block l, before the final LayerNorm. Without a class token: similarity
    to the mean of the patches. High values in deep layers mean that the tokens have become alike.
    Works for every ViT, with or without attention. Raises ConfigError for a ResNet.
    """
    vit = require_vit(model)
    config, grid = vit.config, vit.grid(images)
    tokens = grid[0] * grid[1] + config.num_prefix_tokens
    size = max(1, MAX_ATTENTION_ELEMENTS // (config.layers * tokens * config.width))
    chunks = []
    for chunk in images.split(size):
        outputs = vit.forward_intermediates(chunk)
        maps = [
            patch_to_class_similarity(
                outputs[layer], config.num_prefix_tokens, config.has_class_token
            )
            for layer in range(config.layers)
        ]
        chunks.append(torch.stack(maps, dim=1).unflatten(-1, grid))  # [b, L, h, w]
    return torch.cat(chunks)


def patch_to_class_similarity(x: Tensor, prefix: int, class_token: bool = True) -> Tensor:
    """Compare patch tokens with the class token, or with their mean: [B, T, D] -> [B, N]."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    patches = x[:, prefix:]
    reference = (
        x[:, :1] if prefix and class_token else patches.mean(dim=1, keepdim=True)
    )  # [B, 1, D]
    return cosine_similarity(patches, reference, dim=-1)
