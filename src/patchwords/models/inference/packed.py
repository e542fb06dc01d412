"""Trained models with faster kernels on a CPU, and the same answers.

`pack_for_inference` gives a copy whose weights lie as oneDNN wants them, packed once and not at every
call; the dense layers take in what follows them (GELU, LayerScale, the sum with the residual
stream), and convolutions have their weights standardised once. models/vit.py, models/attention.py and
models/resnet/trunk.py compute the same and remain what is trained.

Sizes: B batch, T tokens, F first tokens, D width, K heads, Dh head width, M MLP width.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from patchwords.models.attention import Attention, attend
from patchwords.models.build import Model
from patchwords.models.layers import MLP
from patchwords.models.resnet.trunk import StdConv, standardise_weight
from patchwords.models.vit import Block, Encoder, ViT

TOKENS_PER_CHUNK = 1600  # enough for the products, and what a block passes on stays in the caches


def supports_packed_linear() -> bool:
    """Return whether this build of torch has oneDNN's kernels for packed weights."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@torch.no_grad()
def pack_for_inference(model: Model, bf16: bool = False) -> Model:
    """Copy a model for a CPU with packed weights; the copy does not learn.

    Its blocks compute in bfloat16 or in float32 whatever the autocast around the call is; other
    layers follow that. Memory: as much again as the blocks' weights take, in bfloat16 half of it. Where
    this is not possible (on a GPU, of a model divided among processes, without oneDNN), or there
    is nothing to gain, it is the model itself; a block of an unusual kind is copied as it is.
    """
    if not supports_packed_linear() or not all(
        is_cpu_float32(value) for value in model.parameters()
    ):
        return model
    modules = list(model.modules())
    if any(
        hasattr(module, "unshard") for module in modules
    ):  # FSDP's: see training/engine/parallel.py
        return model
    if not any(is_plain_block(module) or standardises_weight(module) for module in modules):
        return model
    dtype = torch.bfloat16 if bf16 else torch.float32
    shared: dict[int, object] = {id(value): value for value in model.parameters()}
    fast = copy.deepcopy(model, shared).eval()
    for parent in list(fast.modules()):
        parent.__dict__.pop("forward", None)  # activations need no checkpoints here
        for name, module in parent.named_children():
            if is_plain_block(module):
                setattr(parent, name, PackedBlock(cast(Block, module), dtype))
            elif isinstance(module, StdConv) and module.form is not None:
                module.weight = nn.Parameter(standardise_weight(module.weight, module.form))
                module.form = None
    if isinstance(fast, ViT) and isinstance(fast.encoder.blocks[0], PackedBlock):
        fast.encoder = PackedEncoder(fast.encoder)
    return fast


def is_cpu_float32(parameter: Tensor) -> bool:
    return parameter.device.type == "cpu" and parameter.dtype == torch.float32


def is_plain_block(module: nn.Module) -> bool:
    """Return whether a module is a block with plain attention and a plain MLP."""
    if not isinstance(module, Block) or type(module.attention) is not Attention:
        return False
    if not isinstance(module.mlp, MLP) or not isinstance(module.mlp.gelu, nn.GELU):
        return False
    return module.attention.relative is None and module.attention.q_norm is None


def fold_layer_scale(linear: nn.Linear, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Fold a factor of each output into the weight and the bias of a dense layer."""
    if scale is None:
        return linear.weight, linear.bias
    return linear.weight * scale[:, None], linear.bias * scale


def standardises_weight(module: nn.Module) -> bool:
    return isinstance(module, StdConv) and module.form is not None


class PackedEncoder(Encoder):
    """Encoder that takes a few images at a time through all blocks."""

    def __init__(self, encoder: Encoder) -> None:
        nn.Module.__init__(self)  # the parts are there already
        self.at_every_layer, self.blocks = encoder.at_every_layer, encoder.blocks
        self.norm = encoder.norm

    def forward(
        self,
        x: Tensor,
        grid: tuple[int, int],
        tables: Tensor | None = None,
        start: int = 0,
        num_queries: int | None = None,
    ) -> Tensor:
        """Encode [B, T, D] to float32 [B, T, D] or [B, F, D], the type of the head's weights."""
        with torch.autocast("cpu", enabled=False):  # blocks have a precision of their own
            parts = [
                Encoder.forward(self, some, grid, tables, start, num_queries)
                for some in x.split(max(1, TOKENS_PER_CHUNK // x.shape[1]))
            ]
            return torch.cat(parts).float()


class PackedLinear:
    """Dense layer over packed weights, with GELU or a sum in the same kernel."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype))
        self.bias = bias.detach().to(dtype)

    def __call__(self, x: Tensor, gelu: str | None = None) -> Tensor:
        """Compute [..., outputs] of [..., inputs], then GELU if given ("none": erf, or "tanh")."""
        after = "none" if gelu is None else "gelu"
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, after, [], gelu or ""
        )
        return packed

    def onto(self, x: Tensor, stream: Tensor) -> Tensor:
        """Compute the layer of [..., inputs] and add the residual stream [..., outputs]."""
        total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, stream, self.weight, self.bias, "add"
        )
        return total


class PackedBlock(nn.Module):
    """A `Block` in evaluation mode, over packed weights."""

    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        super().__init__()
        attention, mlp = block.mixer, block.mlp
        assert isinstance(attention, Attention)
        assert isinstance(mlp, MLP)
        assert isinstance(mlp.gelu, nn.GELU)
        self.dtype, self.heads = dtype, attention.heads
        self.qkv = PackedLinear(attention.qkv.weight, attention.qkv.bias, dtype)
        self.proj = PackedLinear(*fold_layer_scale(attention.proj, block.layer_scale1), dtype)
        self.fc1 = PackedLinear(mlp.fc1.weight, mlp.fc1.bias, dtype)
        self.fc2 = PackedLinear(*fold_layer_scale(mlp.fc2, block.layer_scale2), dtype)
        self.gelu = mlp.gelu.approximate
        self.norm1, self.norm2 = block.norm1, block.norm2

    def forward(self, x: Tensor, grid: tuple[int, int], num_queries: int | None = None) -> Tensor:
        """Compute the block's output for [B, T, D]: [B, T, D], or [B, F, D] with `num_queries`."""
        x = x.to(self.dtype)
        qkv = self.qkv(self.normalise(x, self.norm1))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = attend(q[:, :, :num_queries], k, v)  # [B, K, F, Dh]
        x = self.proj.onto(
            y.transpose(1, 2).flatten(2), x[:, :num_queries].contiguous()
        )  # [B, F, D]
        y = self.fc1(self.normalise(x, self.norm2), self.gelu)  # [B, F, M]
        return self.fc2.onto(y, x)

    def normalise(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Normalise with sums and weights in float32, in bfloat16 as well."""
        return layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
