"""What the mixers of tokens cost, and the relative positions in them.

Sizes: N patches, T tokens, D width, K heads, Dh head width, h w grid of patches, W window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from patchwords.model.config import DEFAULT_WINDOW, ViTConfig
from patchwords.model.cost_part import PartCost


def attention_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """Every token sees every other one."""
    return add_relative_cost(
        config, dense_attention_cost(config, config.tokens), config.patches, config.tokens
    )


def axial_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """Attention along the rows in even layers, along the columns in odd ones."""
    rows, columns = config.grid
    line = columns if layer % 2 == 0 else rows
    return add_relative_cost(config, dense_attention_cost(config, line), line, line)


def dense_attention_cost(config: ViTConfig, others: int) -> PartCost:
    """q, k, v, out, q k^T and A v, where a token sees so many. Fused, they keep no weights."""
    tokens, width = config.tokens, config.width
    return PartCost(
        "attention",
        parameters=4 * width * (width + 1),
        macs=tokens * 4 * width**2 + 2 * tokens * others * width,
        kept=5 * tokens * width,  # the input, q, k, v, and what goes into `out`
        at_work=2 * tokens * width,
    )


def add_relative_cost(config: ViTConfig, part: PartCost, patches: int, others: int) -> PartCost:
    """Relative positions on top (relative.py): queries meet all embeddings, and each its own."""
    if config.position != "relative":
        return part
    offsets = 2 * patches - 1 + 3 * config.prefix
    weights = config.tokens * others * config.heads
    return replace(
        part,
        parameters=part.parameters + offsets * config.head_width,
        macs=part.macs + config.tokens * offsets * config.width,
        # The scaled queries; and on a CPU, where no fused kernel takes a bias that learns, the
        # weights, three times over.
        kept=part.kept + config.tokens * config.width + weights,
        float32=part.float32 + 2 * weights,
    )


def local_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """Blocks of W x W queries, each with the (2W - 1) x (2W - 1) keys around it (local.py)."""
    width, window = config.width, config.window or DEFAULT_WINDOW
    rows, columns = config.grid
    blocks = -(-rows // window) * -(-columns // window)
    queries, keys = blocks * window**2, (2 * window - 1) ** 2
    relative = config.position == "relative"
    dense = dense_attention_cost(config, 0)
    weights = queries * keys * config.heads
    return replace(
        dense,
        parameters=dense.parameters + (window * config.head_width if relative else 0),
        macs=dense.macs + queries * width * (2 * keys + (window if relative else 0)),
        # As on a CPU, where no fused kernel takes the mask: blocks of q, k and v, and the weights,
        # all in float32. Beside them the input, what goes into `out`, and scaled queries.
        kept=2 * config.tokens * width + (queries * width if relative else 0),
        float32=blocks * (window**2 + 2 * keys) * width + weights,
        at_work=dense.at_work + weights,
    )


def token_mlp_cost(config: ViTConfig, layer: int) -> PartCost:
    """An MLP across the patches, on every channel by itself; its hidden layer has D/2."""
    patches, width, hidden = config.patches, config.width, config.width // 2
    masks = hidden if config.dropout else 0
    return PartCost(
        "token MLP",
        parameters=hidden * (patches + 1) + patches * (hidden + 1),
        macs=width * 2 * patches * hidden,
        kept=width * (patches + 2 * hidden + masks),
        at_work=width * 2 * (patches + hidden),
    )


def pooling_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """The mean of 3 x 3 neighbours: without a product."""
    return PartCost("pooling", kept=config.tokens * config.width)


def identity_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    return PartCost("identity")


MIXER_COSTS: dict[str, Callable[[ViTConfig, int], PartCost]] = {
    "attention": attention_mixer_cost,
    "axial": axial_mixer_cost,
    "local": local_mixer_cost,
    "pooling": pooling_mixer_cost,
    "mlp": token_mlp_cost,
    "identity": identity_mixer_cost,
}


def mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """What stands at the place of attention in this layer, its input included."""
    return MIXER_COSTS[config.mixer](config, layer)
