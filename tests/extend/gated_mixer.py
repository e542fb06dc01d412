"""A token mixer from outside the package: a gated depth-wise convolution over the grid.

As a user would write it: nothing of patchwords is changed, and `--mixer gated_mixer:GatedConv`
names it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from patchwords.models.config import ViTConfig
from patchwords.models.mixers import MixerTraits
from patchwords.models.mixers.mixer import Mixer


class GatedConv(Mixer):
    """proj(sigmoid(gate(x)) * conv(x)), with a 3x3 convolution of each channel by itself"""

    traits: ClassVar = MixerTraits()

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.width)
        self.conv = nn.Conv2d(config.width, config.width, 3, padding=1, groups=config.width)
        self.scale = nn.Parameter(torch.zeros(config.width))
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        maps = x.transpose(1, 2).unflatten(2, grid)  # [B, D, h, w]
        mixed = self.conv(maps).flatten(2).transpose(1, 2)
        return self.proj(self.gate(x).sigmoid() * mixed) + self.scale * x


class NotAMixer(nn.Module):
    """A class that lacks what a mixer has."""
