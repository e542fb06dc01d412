"""What stands at the place of attention in a block: `mixer` in the config.

Sizes: B batch, T tokens, N = h*w patches, D width.

Pooling and identity are of MetaFormer (arXiv 2111.11418, 2210.13452), the token MLP of MLP-Mixer
(arXiv 2105.01601); axial and local attention have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from patchwords.errors import ConfigError
from patchwords.models.attention import Attention
from patchwords.models.config import DEFAULT_WINDOW, ViTConfig
from patchwords.models.layers import GELU_APPROXIMATE, Dropout
from patchwords.models.mixers.axial import AxialAttention, get_layer_axis, get_line_grid
from patchwords.models.mixers.local import LocalAttention, WindowRelativePositions
from patchwords.models.relative import RelativePositions


class PoolingMixer(nn.Module):
    """The mean of the 3x3 patches around, those on the grid only, minus the patch itself.

    The block adds its input to that: hence the minus (PoolFormer, Sec. 3.2).
    """

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        maps = x.transpose(1, 2).unflatten(2, grid)  # [B, D, h, w]
        means = avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False)
        return means.flatten(2).transpose(1, 2) - x


class IdentityMixer(nn.Module):
    """No mixing at all: the branch is what LayerNorm gives, as in IdentityFormer."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        return x


class TokenMLP(nn.Module):
    """Acts across the patches, on each channel by itself; the hidden layer has D/2, as in Mixer.

    Its second dropout is the one that follows every mixer, in the block.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.width // 2
        self.fc1 = nn.Linear(config.patches, hidden)
        self.gelu = nn.GELU(GELU_APPROXIMATE[config.gelu])
        self.dropout1 = Dropout(config.dropout)
        self.fc2 = nn.Linear(hidden, config.patches)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, N, D]; raises ConfigError for another grid than the config's"""
        check_token_mlp_grid(self.config, grid)
        y = self.dropout1(self.gelu(self.fc1(x.mT)))  # [B, D, D/2]
        return self.fc2(y).mT


def check_token_mlp_grid(config: ViTConfig, grid: tuple[int, int]) -> None:
    """Raises where the token MLP, which has a weight for every patch, meets another grid."""
    if grid == config.grid:
        return
    (rows, columns), (height, width) = config.grid, config.image_size
    raise ConfigError(
        f"mixer 'mlp' has weights for {rows}x{columns} patches and cannot be resized to "
        f"{grid[0]}x{grid[1]}: image size {height}x{width} would do"
    )


def build_relative_positions(
    config: ViTConfig, grid: tuple[int, int], prefix: int
) -> RelativePositions | None:
    if config.position != "relative":
        return None
    return RelativePositions(grid, prefix, config.head_width, config.resize)


def build_attention(config: ViTConfig, layer: int) -> nn.Module:
    relative = build_relative_positions(config, config.grid, config.num_prefix_tokens)
    return Attention(config.width, config.heads, relative)


def build_axial_attention(config: ViTConfig, layer: int) -> nn.Module:
    axis = get_layer_axis(layer)
    relative = build_relative_positions(config, get_line_grid(axis, config.grid), prefix=0)
    return AxialAttention(config.width, config.heads, axis, relative)


def build_local_attention(config: ViTConfig, layer: int) -> nn.Module:
    window = config.window or DEFAULT_WINDOW
    relative = (
        WindowRelativePositions(window, config.head_width)
        if config.position == "relative"
        else None
    )
    return LocalAttention(config.width, config.heads, window, relative)


MIXERS: dict[str, Callable[[ViTConfig, int], nn.Module]] = {
    "attention": build_attention,
    "axial": build_axial_attention,
    "local": build_local_attention,
    "pooling": lambda config, layer: PoolingMixer(),
    "mlp": lambda config, layer: TokenMLP(config),
    "identity": lambda config, layer: IdentityMixer(),
}


def build_mixer(config: ViTConfig, layer: int) -> nn.Module:
    """The mixer of this layer: [B, T, D], (rows, columns) -> [B, T, D]."""
    return MIXERS[config.mixer](config, layer)
