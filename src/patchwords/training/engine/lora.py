"""LoRA (Hu et al. 2021, arXiv 2106.09685): a low-rank update of each dense layer of the blocks.

The layer's own weight W is frozen; `up` and `down` learn, in y = W x + 2 up (down x). `up` starts at
zero, so the model starts as it was. At the end of a run the update is added to W: what is saved is
a plain model. The names of the new parameters are those of checkpoints.
Sizes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from patchwords.errors import ConfigError
from patchwords.models.vit import Block
from patchwords.rng import torch_generator

LORA_SCALE = 2.0  # alpha = 2 R, as is usual; the paper has alpha = R


class LoRALinear(nn.Module):
    """A frozen dense layer and its low-rank update."""

    def __init__(self, dense: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = dense.weight.shape
        draws = torch.rand(rank, inputs, generator=generator) * 2 - 1  # U(-1, 1)
        self.base, self.bias = dense.weight, dense.bias
        self.down = nn.Parameter((draws * inputs**-0.5).to(dense.weight))
        self.up = nn.Parameter(dense.weight.new_zeros(outputs, rank))

    @property
    def weight(self) -> Tensor:
        """Weight [O, I] of the dense layer that computes the same; inference packs it."""
        return self.base + LORA_SCALE * self.up @ self.down

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]"""
        update = linear(linear(x, self.down), self.up)
        return linear(x, self.base, self.bias) + LORA_SCALE * update

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Return the plain dense layer that computes the same."""
        outputs, inputs = self.base.shape
        has_bias = self.bias is not None
        dense = nn.utils.skip_init(
            nn.Linear, inputs, outputs, has_bias, device=self.base.device, dtype=self.base.dtype
        )
        dense.weight.copy_(self.weight)
        if has_bias:
            dense.bias.copy_(self.bias)
        return cast(nn.Linear, dense)

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}"


def add_lora(model: nn.Module, rank: int, seed: int) -> None:
    """Give every dense layer of the blocks an update of this rank, in place.

    Raises ConfigError for a model without blocks, or a rank that saves nothing.
    """
    layers = [
        (f"{path}.{name}", parent, child)
        for path, block in model.named_modules()
        if isinstance(block, Block)
        for name, parent, child in list_dense_layers(block)
    ]
    if not layers:
        raise ConfigError(
            f"--train lora:{rank} is for the blocks of a ViT, and the model has none; choose "
            "norms, last:N or head"
        )
    most = min(min(dense.weight.shape) for _, _, dense in layers)
    if rank >= most:
        raise ConfigError(f"--train lora:{rank}: the model's layers allow ranks up to {most - 1}")
    for name, parent, dense in layers:
        generator = torch_generator(
            seed, "lora", name.removeprefix("vit.").removeprefix("backbone.")
        )
        setattr(parent, name.rsplit(".", 1)[1], LoRALinear(dense, rank, generator))


def list_dense_layers(block: nn.Module) -> list[tuple[str, nn.Module, nn.Linear]]:
    """List the dense layers of a block: name in the block, parent, layer."""
    return [
        (f"{path}.{name}".lstrip("."), parent, child)
        for path, parent in block.named_modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]


def merge_lora(model: nn.Module) -> None:
    """Replace every low-rank update by a plain dense layer that computes the same, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                setattr(parent, name, child.merge())
