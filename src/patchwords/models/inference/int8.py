"""Trained models with matrix products of 8-bit integers, for CPUs with VNNI.

A product of int8 is W x ~ s_w s_x W_q (x_q - 128): the rows of W have a scale s_w each, found from
their largest magnitude; activations have one scale s_x for a layer, which must be known before the
products (`ranges_of`), and stand as unsigned bytes around 128, as VNNI multiplies bytes with and
without a sign. What makes activations easy to round costs nothing, as it goes into the weights:

- channels are brought nearer to one another by SmoothQuant (arXiv 2211.10438, Eqs. 3-4, alpha 0.5),
  between norm1 and q, k, v; norm2 and fc1; v and out;
- 1 / s_x goes into the norm's weight and bias, and, for `out`, into the rows of v: attention's
  weights sum to 1 in every row, so they scale as v does.

GELU is taken, and rounded for fc2, within the product before it. Attention's own products (q k^T,
A v), the residual stream, the embedding and the head are not quantised.

Sizes: B batch, T tokens, F first tokens, D width, K heads, Dh head width, M MLP width.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from patchwords.device import has_fast_bf16
from patchwords.errors import ConfigError
from patchwords.models.attention import Attention, attend
from patchwords.models.build import Model
from patchwords.models.inference.calibration import ActivationRanges, check_quantisable
from patchwords.models.inference.packed import (
    fold_layer_scale,
    pack_for_inference,
    supports_packed_linear,
)
from patchwords.models.layers import MLP
from patchwords.models.vit import Block, ViT

ZERO_POINT = 128  # of signed activations
SMOOTHQUANT_ALPHA = 0.5  # alpha: how much of a channel's size the weights take over
MIN_MAGNITUDE = 1e-6  # a channel that was never seen to be anything else than zero


def find_int8_obstacle() -> str | None:
    """Return why this machine cannot compute in int8; None if it can."""
    if not supports_packed_linear() or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        return "this build of torch is without oneDNN"
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_vnni") or capabilities.get("avx_vnni")):
        # Pairs of products are then added in 16 bits, which overflow: answers would be wrong.
        return "this processor has no VNNI, without which sums of int8 products overflow"
    return None


def check_int8_support(model: Model) -> None:
    """Raise ConfigError if this machine or this model cannot compute in int8."""
    if (reason := find_int8_obstacle()) is not None:
        raise ConfigError(f"int8 cannot be computed here: {reason}; compute in fp32")
    check_quantisable(model)


@torch.no_grad()
def quantise_model(
    model: Model, ranges: ActivationRanges, dtype: torch.dtype | None = None
) -> Model:
    """Copy a model for a CPU, with blocks in int8; the copy does not learn.

    `dtype` is that of the residual stream and of attention; default: bfloat16 if that is fast.
    Layers outside the blocks follow the autocast around the call. Raises ConfigError if the
    machine or the model cannot compute in int8.
    """
    check_int8_support(model)
    if dtype is None:
        dtype = torch.bfloat16 if has_fast_bf16(cuda=False) else torch.float32
    fast = cast(ViT, pack_for_inference(model, bf16=dtype == torch.bfloat16))
    if fast is model:
        raise ConfigError("int8 is for a whole model in float32 on the CPU; this one is none")
    for layer, block in enumerate(cast(ViT, model).encoder.blocks):
        of_block = {name: ranges[f"blocks.{layer}.{name}"] for name in BLOCK_RANGE_NAMES}
        fast.encoder.blocks[layer] = QuantisedBlock(cast(Block, block), of_block, dtype)
    # What follows the blocks has weights in float32, and is a small part of the work.
    cast(QuantisedBlock, fast.encoder.blocks[-1]).gives = torch.float32
    return fast


BLOCK_RANGE_NAMES = ("norm1", "gathered", "norm2", "gelu")  # what is known of a block


class QuantisedBlock(nn.Module):
    """A `Block` in evaluation mode with its four dense layers in int8."""

    def __init__(self, block: Block, ranges: ActivationRanges, dtype: torch.dtype) -> None:
        super().__init__()
        attention, mlp = cast(Attention, block.mixer), cast(MLP, block.mlp)
        self.dtype, self.gives = dtype, dtype
        self.heads, self.gelu = attention.heads, cast(nn.GELU, mlp.gelu).approximate
        qkv = attention.qkv
        proj, proj_bias = fold_layer_scale(attention.proj, block.layer_scale1)
        fc2, fc2_bias = fold_layer_scale(mlp.fc2, block.layer_scale2)
        smooth1, scale1 = smooth_scales(ranges["norm1"], qkv.weight)
        smooth2, scale2 = smooth_scales(ranges["norm2"], mlp.fc1.weight)
        smooth, scale = smooth_scales(ranges["gathered"], proj)
        self.norm1 = ScaledLayerNorm(block.norm1, smooth1 * scale1)
        self.norm2 = ScaledLayerNorm(block.norm2, smooth2 * scale2)
        ones = torch.ones_like(smooth)
        rows = torch.cat([ones, ones, 1 / (smooth * scale)])  # [3 D]: those of v in units of `proj`
        self.qkv = Int8Linear(qkv.weight * smooth1 * rows[:, None], qkv.bias * rows, scale1)
        self.proj = Int8Linear(proj * smooth, proj_bias, scale)
        least, greatest = ranges["gelu"].tolist()
        unit = max(greatest - least, MIN_MAGNITUDE) / 255  # of what GELU gives to fc2
        self.fc1 = Int8Linear(mlp.fc1.weight * smooth2, mlp.fc1.bias, scale2)
        self.fc2 = Int8Linear(fc2, fc2_bias, unit, round(-least / unit))

    def forward(self, x: Tensor, grid: tuple[int, int], num_queries: int | None = None) -> Tensor:
        """Compute the block's output for [B, T, D]: [B, T, D], or [B, F, D] with `num_queries`."""
        with torch.autocast("cpu", enabled=False):
            x = x.to(self.dtype)
            qkv = self.qkv(round_to_uint8(self.norm1(x)), self.dtype)  # [B, T, 3 D]
            q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            y = attend(q[:, :, :num_queries], k, v)  # [B, K, F, Dh], in units of `proj`
            y = round_to_uint8(y.transpose(1, 2).flatten(2).float())  # [B, F, D]
            x = self.proj.onto(y, x[:, :num_queries].contiguous())
            y = self.fc1.gelu(round_to_uint8(self.norm2(x)), self.gelu, self.fc2)  # [B, F, M]
            return self.fc2.onto(y, x).to(self.gives)


class ScaledLayerNorm(nn.Module):
    """LayerNorm with outputs in units of the scale of int8, before rounding."""

    def __init__(self, norm: nn.LayerNorm, unit: Tensor) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight / unit, norm.bias / unit

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., D]; the result is float32."""
        return layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps)


class Int8Linear:
    """Dense layer with int8 weights, one scale for each output, packed for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor, scale: float, zero: int = ZERO_POINT) -> None:
        units = weight.abs().amax(1).clamp(min=MIN_MAGNITUDE) / 127  # [outputs]
        rounded = (weight / units[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.units, self.bias = units.float(), bias.detach().float()
        self.scale, self.zero = scale, zero  # of the inputs
        self.no_zeros = torch.zeros(len(weight), dtype=torch.int32)  # those of the weights

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Compute [..., outputs] of uint8 [..., inputs]."""
        return self.product(x, 1.0, 0, dtype, "none", "")

    def gelu(self, x: Tensor, form: str, onward: Int8Linear) -> Tensor:
        """Compute the layer and GELU (`form` "none": erf, or "tanh") as uint8 for `onward`."""
        return self.product(x, onward.scale, onward.zero, torch.uint8, "gelu", form)

    def product(
        self, x: Tensor, scale: float, zero: int, dtype: torch.dtype, after: str, form: str
    ) -> Tensor:
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(x, self.scale, self.zero, self.weight, self.units, self.no_zeros, self.bias),
            *(scale, zero, dtype, after, [], form),
        )
        return found

    def onto(self, x: Tensor, stream: Tensor) -> Tensor:
        """Compute the layer of uint8 [..., inputs] and add the residual stream [..., outputs]."""
        total: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
            *(x, self.scale, self.zero, self.weight, self.units, self.no_zeros, stream, self.bias),
            *(1.0, 0, stream.dtype, 1.0, 0, "add", 1.0, "none", [], ""),
        )
        return total


def smooth_scales(magnitudes: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """Compute the divisors of channels, [D], and the scale of activations after them.

    `magnitudes` [D] are those of activations, `weight` is [outputs, D]. SmoothQuant's Eq. 4: the
    columns of the weights are multiplied by the divisors.
    """
    x, w = magnitudes.clamp(min=MIN_MAGNITUDE), weight.abs().amax(0).clamp(min=MIN_MAGNITUDE)
    smooth = x**SMOOTHQUANT_ALPHA / w ** (1 - SMOOTHQUANT_ALPHA)
    return smooth, float((x / smooth).max()) / 127


def round_to_uint8(x: Tensor) -> Tensor:
    """Round float32 to uint8 around `ZERO_POINT`, clamped to 0 to 255; `x` is overwritten.

    By way of int8, to which torch converts four times as fast; adding 128 to its bytes wraps round.
    """
    return x.round_().clamp_(-128, 127).to(torch.int8).view(torch.uint8).add_(ZERO_POINT)
