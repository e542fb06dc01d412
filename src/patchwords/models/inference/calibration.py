"""Ranges of the numbers inside a model, which int8 needs in advance.

Sizes: B batch, T tokens, D width, M MLP width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from patchwords.errors import ConfigError
from patchwords.models.attention import Attention, attend
from patchwords.models.build import Model
from patchwords.models.config import ViTConfig
from patchwords.models.inference.packed import fold_layer_scale, is_plain_block
from patchwords.models.layers import MLP
from patchwords.models.vit import Block, ViT

# "blocks.{i}.{name}" -> [D], the largest magnitude of each channel of norm1 and norm2 and of the
# values that attention gathers; [2], the least and the greatest for "gelu".
ActivationRanges = dict[str, Tensor]


def check_quantisable(model: Model) -> ViT:
    """Return the model as a ViT; raise ConfigError if int8 cannot run its blocks."""
    if not isinstance(model, ViT):
        raise ConfigError(
            "int8 is for the matrix products of a Transformer, and this model is made of "
            "convolutions: compute in bf16 or fp32"
        )
    if not all(
        isinstance(block, Block) and is_plain_block(block) for block in model.encoder.blocks
    ):
        config = model.config
        raise ConfigError(
            f"int8 is for blocks of plain attention and GELU; this model has mixer {config.mixer!r} "
            f"and position {config.position!r}{describe_unusual_parts(config)}: compute in bf16 or fp32"
        )
    return model


def describe_unusual_parts(config: ViTConfig) -> str:
    """Name the parts of a block that have no kernels in int8."""
    parts = [name for name in ("qk_norm", "swiglu") if getattr(config, name)]
    parts += ["QuickGELU"] if config.gelu == "quick" else []
    return f", and {' and '.join(parts)}" if parts else ""


@torch.inference_mode()
def collect_activation_ranges(model: Model, batches: Iterable[Tensor]) -> ActivationRanges:
    """Collect the ranges of activations for batches of images [B, C, H, W].

    The model computes in float32, in evaluation mode.

    Raises ConfigError for a model without blocks of plain attention, and where there is no image
    or a number on its way is not finite.
    """
    vit = check_quantisable(model)
    found: ActivationRanges = {}
    for images in batches:
        grid = vit.grid(images)
        tables = vit.positions(grid, images)
        x = vit.enter(vit.embed_patches(images), tables)  # [B, T, D]
        for layer, block in enumerate(vit.encoder.blocks):
            x = vit.encoder.add_positions(layer, x, tables)
            x, met = observe_block(cast(Block, block), x)
            for name, value in met.items():
                widen_range(found, f"blocks.{layer}.{name}", value)
    if not found:
        raise ConfigError("there is no image to find the ranges of activations with")
    for name, value in found.items():
        if not value.isfinite().all():
            raise ConfigError(f"{name} is not finite: the weights are damaged, or diverged")
    return found


def observe_block(block: Block, x: Tensor) -> tuple[Tensor, ActivationRanges]:
    """Compute a block's output for [B, T, D], and the tensors inside it (Eqs. 2-3)."""
    attention, mlp = cast(Attention, block.mixer), cast(MLP, block.mlp)
    normed1 = block.norm1(x)
    gathered = attend(*attention.project(normed1)).transpose(1, 2).flatten(2)  # [B, T, D]
    x = x + linear(gathered, *fold_layer_scale(attention.proj, block.layer_scale1))
    normed2 = block.norm2(x)
    bent = mlp.gelu(mlp.fc1(normed2))  # [B, T, M]
    return x + linear(bent, *fold_layer_scale(mlp.fc2, block.layer_scale2)), {
        "norm1": channel_magnitudes(normed1),
        "gathered": channel_magnitudes(gathered),
        "norm2": channel_magnitudes(normed2),
        "gelu": torch.stack(bent.aminmax()),
    }


def channel_magnitudes(x: Tensor) -> Tensor:
    """Compute the largest magnitude of each channel of [B, T, D]: [D]."""
    return x.abs().amax((0, 1))


def widen_range(found: ActivationRanges, name: str, value: Tensor) -> None:
    """Widen the range of a name by the values of a tensor."""
    known = found.get(name, value)
    if name.endswith("gelu"):
        found[name] = torch.stack([known[0].minimum(value[0]), known[1].maximum(value[1])])
    else:
        found[name] = known.maximum(value)


def list_range_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """List the shape of each range that `collect_activation_ranges` returns, by name."""
    config = check_quantisable(model).config
    sizes = {"norm1": config.width, "gathered": config.width, "norm2": config.width, "gelu": 2}
    return {
        f"blocks.{layer}.{name}": (size,)
        for layer in range(config.layers)
        for name, size in sizes.items()
    }
