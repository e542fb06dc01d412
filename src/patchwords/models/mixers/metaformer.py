"""Mixers without weights: pooling and identity, of MetaFormer (arXiv 2111.11418, 2210.13452).

Sizes: B batch, N = h*w patches, D width.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import avg_pool2d

from patchwords.models.config import ViTConfig
from patchwords.models.mixers import MIXERS
from patchwords.models.mixers.mixer import Mixer


class PoolingMixer(Mixer):
    """Mean of the 3x3 patches around, without those outside the grid, minus the patch itself.

    The block adds its input to that: hence the minus (PoolFormer, Sec. 3.2).
    """

    traits: ClassVar = MIXERS["pooling"].traits

    @classmethod
    def build(cls, config: ViTConfig, layer: int) -> PoolingMixer:
        return cls()

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        maps = x.transpose(1, 2).unflatten(2, grid)  # [B, D, h, w]
        means = avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False)
        return means.flatten(2).transpose(1, 2) - x


class IdentityMixer(Mixer):
    """No mixing: the branch is the output of LayerNorm, as in IdentityFormer."""

    traits: ClassVar = MIXERS["identity"].traits

    @classmethod
    def build(cls, config: ViTConfig, layer: int) -> IdentityMixer:
        return cls()

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        return x
