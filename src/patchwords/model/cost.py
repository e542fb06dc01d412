"""What a ViT costs, by arithmetic on its config: parameters, multiplications, memory.

Sizes: P patch size, C channels, N patches, T tokens, D width, K heads, M MLP width, L depth,
R representation. Sources: Eqs. 1-8 counted out; the sums meet the published counts of parameters
to the unit. 1 MAC is one multiplication with its addition; FLOPs are 2 MACs.
"""

from __future__ import annotations

from collections.abc import Sequence

from patchwords.model.config import ViTConfig


def parameters(config: ViTConfig) -> int:
    """How many numbers the model has."""
    width, mlp_width = config.width, config.mlp_width
    norm = 2 * width
    attention = 4 * width * (width + 1)  # q, k, v, out with their biases
    mlp = width * (mlp_width + 1) + mlp_width * (width + 1)
    embed = width * (config.patch_size**2 * config.channels + 1)
    table = config.tokens * width if config.position == "1d" else 0
    pool = (width + attention + norm + mlp) if config.classifier == "map" else 0  # width: probe
    return (
        embed
        + config.prefix * width
        + table
        + config.depth * (2 * norm + attention + mlp)
        + norm
        + pool
        + _head(config, bias=1)
    )


def macs(config: ViTConfig, image_size: int | Sequence[int] | None = None) -> int:
    """Multiplications of one image through the matrices of the model; a training step takes 3x.

    LayerNorm, softmax, GELU and sums are left out, as is usual: they are below 1 %.
    """
    config = _at(config, image_size)
    tokens, width, mlp_width = config.tokens, config.width, config.mlp_width
    embed = config.patches * config.patch_size**2 * config.channels * width
    dense = tokens * (4 * width**2 + 2 * width * mlp_width)
    attention = 2 * tokens**2 * width  # q k^T and A v
    pool = 0
    if config.classifier == "map":  # keys and values of T tokens; the rest is for one query
        pool = 2 * (tokens + 1) * width**2 + 2 * tokens * width + 2 * width * mlp_width
    return embed + config.depth * (dense + attention) + pool + _head(config, bias=0)


def activation_bytes(
    config: ViTConfig,
    batch: int,
    image_size: int | Sequence[int] | None = None,
    bytes_per_value: int = 4,
) -> int:
    """About the most memory that the activations of one training step take at once.

    Weights, their gradients and the optimizer's state come on top. Per token and block, backward
    needs 8D + 2M values: the inputs of the two LayerNorms (2D) and their outputs (2D), q k v (3D),
    what attention gives (D), the MLP's hidden layer before and after GELU (2M); dropout adds its
    masks (2D + M). To this come the images, the ends of the encoder (2D), and what the backward
    pass of one block works with (2D + 2M). Attention is taken as fused: it keeps no T x T matrix.

    `bytes_per_value` is 2 in mixed precision: the inputs of LayerNorms stay in float32 even then,
    and autocast keeps a copy of the weights. Within 10 % of what Ti and S take on a CPU.
    """
    config = _at(config, image_size)
    width, mlp_width = config.width, config.mlp_width
    inner = 6 * width + 2 * mlp_width
    if config.dropout:
        inner += 2 * width + mlp_width
    at_work = 2 * width + 2 * mlp_width
    stream = 2 * width * (config.depth + 1) * max(bytes_per_value, 4)
    per_token = stream + (config.depth * inner + at_work) * bytes_per_value
    pixels = config.channels * config.image_size[0] * config.image_size[1] * 4
    copies = parameters(config) * bytes_per_value if bytes_per_value < 4 else 0
    return batch * (config.tokens * per_token + pixels) + copies


def _head(config: ViTConfig, bias: int) -> int:
    """Products (or, with bias 1, parameters) of the tanh layer and the classifier."""
    size = config.representation_size
    hidden = size * (config.width + bias) if size else 0
    return hidden + config.num_classes * ((size or config.width) + bias)


def _at(config: ViTConfig, image_size: int | Sequence[int] | None) -> ViTConfig:
    return config if image_size is None else config.with_settings(image_size=image_size)
