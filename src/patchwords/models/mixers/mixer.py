"""The base class of token mixers.

Sizes: B batch, T tokens, N = h*w patches, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from patchwords.models.config import ViTConfig
from patchwords.models.layers import StateNames
from patchwords.models.mixers import MixerTraits


class Mixer(StateNames):
    """Mixes tokens: one instance in each block, between its first LayerNorm and dropout.

    A subclass is built by `cls(config, layer)`, or has a `build` of its own, and says in `traits`
    what the code around it has to know. Parameters may have any names; their weights decay if
    they are called `weight` and belong to no norm.
    """

    traits: ClassVar[MixerTraits] = MixerTraits()

    @classmethod
    def build(cls, config: ViTConfig, layer: int) -> Mixer:
        """Build the mixer of a block; blocks count from 0."""
        return cls(config, layer)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mix the patches [B, N, D]; `grid` is their (rows, columns).

        With the trait `has_class_token` it is [B, T, D], and a third argument `num_queries` asks
        for the first F tokens alone: [B, F, D].
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    @classmethod
    def resize(
        cls, weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig, layer: int
    ) -> dict[str, Tensor]:
        """Fit its state dict to the grid of `new`; by default unchanged."""
        return dict(weights)

    @classmethod
    def init_parameter(cls, name: str, values: Tensor, generator: torch.Generator) -> None:
        """Fill a parameter that no rule of models/init.py names, in place.

        By default matrices are Xavier-uniform, as the dense layers of a block; convolutions have
        variance 1/fan_in; vectors are 1 if they are called `weight`, else 0.
        """
        if values.ndim == 2:
            nn.init.xavier_uniform_(values, generator=generator)
        elif values.ndim > 2:
            values.normal_(0.0, values[0].numel() ** -0.5, generator=generator)
        else:
            values.fill_(float(name.endswith("weight")))
