"""The token MLP of MLP-Mixer (arXiv 2105.01601).

Sizes: B batch, N = h*w patches, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.layers import Dropout, make_gelu
from patchwords.models.mixers import MIXERS
from patchwords.models.mixers.mixer import Mixer


class TokenMLP(Mixer):
    """Acts across the patches, on each channel by itself; the hidden layer has D/2, as in Mixer.

    Its second dropout is the one that follows every mixer, in the block.
    """

    traits: ClassVar = MIXERS["mlp"].traits

    def __init__(self, config: ViTConfig, layer: int = 0) -> None:
        super().__init__()
        self.config = config
        hidden = config.width // 2
        self.fc1 = nn.Linear(config.patches, hidden)
        self.gelu = make_gelu(config.gelu)
        self.dropout1 = Dropout(config.dropout)
        self.fc2 = nn.Linear(hidden, config.patches)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, N, D]; raises ConfigError for another grid than the config's"""
        check_token_mlp_grid(self.config, grid)
        y = self.dropout1(self.gelu(self.fc1(x.mT)))  # [B, D, D/2]
        return self.fc2(y).mT

    @classmethod
    def resize(
        cls, weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig, layer: int
    ) -> dict[str, Tensor]:
        """The weights as they are; raises ConfigError for another grid."""
        check_token_mlp_grid(old, new.grid)
        return dict(weights)


def check_token_mlp_grid(config: ViTConfig, grid: tuple[int, int]) -> None:
    """Raise for another grid than the config's: the token MLP has a weight for every patch."""
    if grid == config.grid:
        return
    (rows, columns), (height, width) = config.grid, config.image_size
    raise ConfigError(
        f"mixer 'mlp' has weights for {rows}x{columns} patches and cannot be resized to "
        f"{grid[0]}x{grid[1]}: image size {height}x{width} would do"
    )
