"""What the parts of a ViT cost: Eqs. 1-4 and their alternatives, counted out.

Sizes: P patch size, C channels, N patches, T tokens, D width, K heads, M MLP width, R
representation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from patchwords.model.config import ViTConfig
from patchwords.model.cost_mixers import mixer_cost
from patchwords.model.cost_part import PartCost
from patchwords.model.cost_trunk import trunk_part_costs


def vit_part_costs(config: ViTConfig) -> Iterator[PartCost]:
    """Trunk, embedding, positions, blocks and head in order; blocks are named by their branches."""
    if config.trunk:
        yield from trunk_part_costs(config.trunk, config.channels, config.image_size)
    yield embedding_cost(config)
    yield position_cost(config)
    for layer in range(config.layers):
        both = branch_cost(config, mixer_cost(config, layer)), branch_cost(config, mlp_cost(config))
        yield from both if layer < config.layers - 1 else drop_unread_tokens(config, *both)
    yield last_norm_cost(config)
    if config.classifier == "map":
        yield attention_pool_cost(config)
    yield vit_head_cost(config)


def count_unread_macs(config: ViTConfig) -> int:
    """Attention, `out` and MLP of the last block's tokens that the classifier does not read."""
    if config.read is None:
        return 0
    width, tokens = config.width, config.tokens
    offsets = 2 * config.patches - 1 + 3 * config.prefix if config.position == "relative" else 0
    of_one = width**2 + (2 * tokens + offsets) * width + 2 * width * config.mlp_width
    return (tokens - config.read) * of_one


def drop_unread_tokens(
    config: ViTConfig, mixing: PartCost, dense: PartCost
) -> tuple[PartCost, PartCost]:
    """The last block's memory where most of its tokens are not read; its products stay counted."""
    if config.read is None:
        return mixing, dense
    unread, width = config.tokens - config.read, config.width
    share = config.read / config.tokens
    # What goes into `out`, its dropout's mask, and with relative positions queries and weights.
    lost = unread * width * (2 if config.dropout else 1)
    if config.position == "relative":
        weights = unread * config.tokens * config.heads
        mixing = replace(mixing, float32=mixing.float32 - 2 * weights)
        lost += unread * width + weights
    mixing = replace(mixing, kept=mixing.kept - lost)
    dense = replace(
        dense,
        kept=round(dense.kept * share),
        float32=round(dense.float32 * share),
        at_work=round(dense.at_work * share),
    )
    return mixing, dense


def embedding_cost(config: ViTConfig) -> PartCost:
    """Patches through E, and the class token."""
    channels = config.trunk.channels if config.trunk else config.channels
    weights = config.patch_size**2 * channels * config.width
    height, width = config.image_size
    return PartCost(
        "embedding",
        parameters=weights + config.width + config.prefix * config.width,
        macs=config.patches * weights,
        # The features of a trunk are kept by its last unit.
        float32=0 if config.trunk else config.channels * height * width,
    )


def position_cost(config: ViTConfig) -> PartCost:
    """The tables that are added to the tokens (Table 8). Relative ones count with attention."""
    tables = config.layers if config.position_at == "every" else 1
    rows = {
        "1d": config.tokens * config.width,
        "2d": sum(config.grid) * (config.width // 2) + config.prefix * config.width,
    }
    return PartCost("positions", parameters=tables * rows.get(config.position, 0))


def branch_cost(config: ViTConfig, inner: PartCost) -> PartCost:
    """The LayerNorm before a mixer or an MLP, and the dropout after it (Eqs. 2 and 3)."""
    values = config.tokens * config.width
    return replace(
        inner,
        parameters=2 * config.width + inner.parameters,
        kept=inner.kept + (values if config.dropout else 0),
        float32=inner.float32 + values,  # the residual stream is not cut to 16 bits
    )


def mlp_cost(config: ViTConfig, tokens: int | None = None) -> PartCost:
    """Two dense layers; what they take, and the hidden layer before and after GELU, is kept."""
    tokens = config.tokens if tokens is None else tokens
    width, hidden = config.width, config.mlp_width
    masks = hidden if config.dropout else 0
    return PartCost(
        "MLP",
        parameters=hidden * (width + 1) + width * (hidden + 1),
        macs=tokens * 2 * width * hidden,
        kept=tokens * (width + 2 * hidden + masks),
        at_work=tokens * 2 * (width + hidden),
    )


def last_norm_cost(config: ViTConfig) -> PartCost:
    """Eq. 4, on every token."""
    width = config.width
    return PartCost("last norm", parameters=2 * width, float32=2 * config.tokens * width)


def attention_pool_cost(config: ViTConfig) -> PartCost:
    """Attention pooling by one learned query: keys and values of T tokens, the rest is for one."""
    width, tokens = config.width, config.tokens
    inner = mlp_cost(config, tokens=1)
    attention = 4 * width * (width + 1)
    return PartCost(
        "attention pooling",
        parameters=width + attention + 2 * width + inner.parameters,
        macs=2 * (tokens + 1) * width**2 + 2 * tokens * width + inner.macs,
        kept=2 * tokens * width,
    )


def vit_head_cost(config: ViTConfig) -> PartCost:
    """The tanh layer and the classifier."""
    width, size = config.width, config.representation_size
    inputs = size or width
    hidden = size * width if size else 0
    classifier = config.num_classes * inputs
    return PartCost(
        "head",
        parameters=hidden + (size or 0) + classifier + config.num_classes,
        macs=hidden + classifier,
    )
