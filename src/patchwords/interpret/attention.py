"""Where a ViT looks: the attention of its layers and heads, one layer in memory at a time.

Sizes: B batch, C channels, H W image, h w grid, N = h*w patches, T tokens, K heads, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from patchwords.errors import ConfigError
from patchwords.models.build import Model
from patchwords.models.config import MIXERS_WITH_HEADS, ViTConfig
from patchwords.models.vit import ViT

QueryPatch = (
    tuple[int, int] | None
)  # (row, column) of a patch; None: what the classifier sees, below
MAX_ATTENTION_ELEMENTS = (
    2**25
)  # of attention at a time: 128 MiB, and about three times that on the way
MAX_CHUNK_IMAGES = 32


def require_vit(model: Model) -> ViT:
    """The model itself; raises ConfigError for a ResNet, which has no tokens."""
    if isinstance(model, ViT):
        return model
    raise ConfigError(
        "a ResNet has no patches that attend to one another, so no attention can be shown: its "
        "filters can, without images, and with images those that are nearest in its features"
    )


def require_attention(model: Model) -> ViT:
    """The model itself; raises ConfigError where nothing in it weighs patches by attention."""
    vit = require_vit(model)
    if vit.config.mixer in MIXERS_WITH_HEADS:
        return vit
    raise ConfigError(
        f"mixer {vit.config.mixer!r} has no attention to show: filters and positions can be "
        "shown, without images"
    )


def choose_chunk_size(config: ViTConfig, grid: tuple[int, int], layers: int = 1) -> int:
    """So many that the attention of this many layers stays below MOST_NUMBERS; at least one."""
    tokens = grid[0] * grid[1] + config.num_prefix_tokens
    return max(
        1, min(MAX_CHUNK_IMAGES, MAX_ATTENTION_ELEMENTS // (layers * config.heads * tokens**2))
    )


def split_into_chunks(model: ViT, images: Tensor, layers: int = 1) -> Iterator[Tensor]:
    """[B, C, H, W] -> the same a few at a time; raises where the model cannot take them."""
    size = choose_chunk_size(model.config, model.grid(images), layers)
    return iter(images.split(size))


@torch.no_grad()
def attention_maps(
    model: Model,
    images: Tensor,
    layers: Sequence[int] | None = None,
    query: QueryPatch = None,
) -> Tensor:
    """[B, C, H, W] -> [B, L, K, h, w]: how much the query attends to each patch.

    Of the layers asked for, by depth, or all; every head. `query` is a patch, or None for the class
    token; where there is none (classifiers gap and map), the mean over all patches as queries. In a
    row of a class token model, what goes to the class token is missing: it sums to less than 1.
    Raises ConfigError where there is no attention, no such layer or no such patch.
    """
    vit = require_attention(model)
    parts = []
    for some in split_into_chunks(vit, images):
        grid = vit.grid(some)
        rows = [
            extract_query_map(
                promote_to_float32(attention), grid, vit.config.num_prefix_tokens, query
            )
            for _, attention in vit.attention(some, layers)
        ]
        parts.append(torch.stack(rows, dim=1))  # [b, L, K, h, w]
    return torch.cat(parts)


def extract_query_map(
    matrix: Tensor, grid: tuple[int, int], prefix: int, query: QueryPatch = None
) -> Tensor:
    """[..., T, T] -> [..., h, w]: the row of the query, its patches; see `attention_maps`."""
    if query is not None:
        row = matrix[..., prefix + find_patch_index(query, grid), :]
    elif prefix:
        row = matrix[..., 0, :]
    else:
        row = matrix.mean(dim=-2)
    return row[..., prefix:].unflatten(-1, grid)


def find_patch_index(query: tuple[int, int], grid: tuple[int, int]) -> int:
    """Where a patch stands in the raster; raises ConfigError for one that is not on the grid."""
    row, column = query
    if 0 <= row < grid[0] and 0 <= column < grid[1]:
        return row * grid[1] + column
    raise ConfigError(
        f"patch {row} {column} is not on the grid of {grid[0]}x{grid[1]}: rows are 0 to "
        f"{grid[0] - 1}, columns 0 to {grid[1] - 1}"
    )


def check_heads(heads: Sequence[int], count: int) -> list[int]:
    """Heads counted from 0, or from the end if negative; one that is not there is an error."""
    for head in heads:
        if not -count <= head < count:
            raise ConfigError(
                f"head {head} does not exist: this model has {count}, 0 to {count - 1}"
            )
    return [head % count for head in heads]


def promote_to_float32(attention: Tensor) -> Tensor:
    """In float32 at least: rows of a half precision do not sum to 1."""
    return attention.to(torch.promote_types(attention.dtype, torch.float32))


def matmul_without_autocast(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in their own precision, under autocast too: rounding would grow with depth"""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


# How alike the patch tokens are to the token that the classifier reads, layer by layer.
#
# Cosine similarity of each patch to the class token, or, where there is none, to the mean of the
# patches, in the outputs of the blocks (before the final LayerNorm). High everywhere in deep layers
# means that tokens have grown alike.
#
# Sizes: B batch, C channels, H W image, h w grid, T tokens, D width, L layers.


@torch.no_grad()
def token_similarity(model: Model, images: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, L, h, w], from -1 to 1; layer l is the output of block l.

    For every ViT, also for one whose mixer has no attention. Raises ConfigError for a ResNet.
    """
    vit = require_vit(model)
    config, grid = vit.config, vit.grid(images)
    tokens = grid[0] * grid[1] + config.num_prefix_tokens
    size = max(1, MAX_ATTENTION_ELEMENTS // (config.layers * tokens * config.width))
    parts = []
    for some in images.split(size):
        outputs = vit.forward_intermediates(some)
        maps = [
            patch_to_class_similarity(outputs[layer], config.num_prefix_tokens)
            for layer in range(config.layers)
        ]
        parts.append(torch.stack(maps, dim=1).unflatten(-1, grid))  # [b, L, h, w]
    return torch.cat(parts)


def patch_to_class_similarity(x: Tensor, prefix: int) -> Tensor:
    """[B, T, D] -> [B, N]"""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    patches = x[:, prefix:]
    read = x[:, :1] if prefix else patches.mean(dim=1, keepdim=True)  # [B, 1, D]
    return cosine_similarity(patches, read, dim=-1)
