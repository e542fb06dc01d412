"""Layers of a block: dropout, the MLP of Sec. 3.1 and its variants, names that state dicts keep.

torch's dropout draws a double for each value, one after the other, which takes a third of the
training step of a small ViT on a CPU. A dropped value needs 16 random bits, and one draw
gives four times as many; so masks are drawn several times faster here. On a GPU, and where torch
compiles the model, torch's own dropout is used.

Sizes: B batch, T tokens, D width, M MLP width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

DROPOUT_LEVELS = 1 << 16  # a probability is rounded to 1/65,536, and what is kept is scaled by that
INT64_MIN = torch.iinfo(torch.int64).min  # from here up, a draw gives all 64 bits


class Dropout(nn.Dropout):
    """In training, values are zero with probability p, and the others scaled by 1 / (1 - p)."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop values of a tensor of any shape."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        return x * sample_dropout_mask(x, self.p)


def sample_dropout_mask(like: Tensor, p: float) -> Tensor:
    """Draw a mask shaped as `like`: 0 with probability p, else 1 / (1 - p)."""
    dropped = round(p * DROPOUT_LEVELS)  # of the 65,536 values that 16 bits can have
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(INT64_MIN, None)
    bits = draws.view(torch.int16)[: like.numel()].view(like.shape)  # -32,768 .. 32,767
    keep = (bits >= dropped - DROPOUT_LEVELS // 2).to(like.dtype)
    return keep.mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped))


class StateNames(nn.Module):
    """A module some of whose submodules have another name in its state dict.

    The names of parameters are part of files, checkpoints and seeds, so they stay when the code
    finds a better word: `state_names` maps attributes to them.
    """

    state_names: ClassVar[dict[str, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(self.state_names.get(name, name), value)

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        return super().__getattr__(self.state_names.get(name, name))


GELU_APPROXIMATE = {"erf": "none", "tanh": "tanh"}  # our name -> torch's


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x): the approximation that CLIP was trained with."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to a tensor of any shape."""
        return x * torch.sigmoid(1.702 * x)


def make_gelu(form: str) -> nn.Module:
    """Make a GELU by the name that configs have for it."""
    return QuickGELU() if form == "quick" else nn.GELU(GELU_APPROXIMATE[form])


class MLP(nn.Module):
    """Two dense layers with a GELU between them, on each token by itself."""

    def __init__(self, width: int, mlp_width: int, gelu: str, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_width)
        self.gelu = make_gelu(gelu)
        self.dropout1 = Dropout(dropout)
        self.fc2 = nn.Linear(mlp_width, width)
        self.dropout2 = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x = self.dropout1(self.gelu(self.fc1(x)))  # [B, T, M]
        return self.dropout2(self.fc2(x))


class SwiGLU(nn.Module):
    """Gated MLP (arXiv 2002.05202): silu of the first half of fc1 times the second half."""

    def __init__(self, width: int, mlp_width: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * mlp_width)
        self.dropout1 = Dropout(dropout)
        self.fc2 = nn.Linear(mlp_width, width)
        self.dropout2 = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        gate, values = self.fc1(x).chunk(2, dim=-1)  # [B, T, M] each
        return self.dropout2(self.fc2(self.dropout1(silu(gate) * values)))
