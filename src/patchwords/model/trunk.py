"""The convolutional part of a ResNet or of a hybrid: root and stages (Sec. 4.1).

Sizes: B batch, C channels of the image, H W image, C' channels and h w size of a feature map.
Sources: vit_jax/models_resnet.py and models_vit.py (form "post"), bit_pytorch/models.py of
big_transfer (form "pre"); trunk_config.py tells what sets them apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, pad, relu

from patchwords.model.axial_resnet import PositionSensitiveAxialAttention
from patchwords.model.std_conv import StdConv, compute_padding
from patchwords.model.trunk_config import (
    BOTTLENECK_EXPANSION,
    GROUP_NORM_GROUPS,
    TrunkConfig,
    halve_grid,
)

POOL_PADDING_LOWEST = float("-inf")


class Trunk(nn.Module):
    """Root and stages. `image_size` matters to axial units only: their tables are made for it."""

    def __init__(self, config: TrunkConfig, channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.root = Root(config, channels)
        unit = PostActBottleneck if config.form == "post" else PreActBottleneck
        grid = halve_grid(halve_grid(image_size))
        inputs = config.root_channels
        self.stages = nn.ModuleList()
        for stage, count in enumerate(config.units):
            width = config.root_channels * 2**stage
            units = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                units.append(unit(config, inputs, width, stride, grid))
                grid = halve_grid(grid) if stride == 2 else grid
                inputs = BOTTLENECK_EXPANSION * width
            self.stages.append(nn.Sequential(*units))

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C', h, w], of the last unit; h, w: TrunkConfig.grid"""
        x = self.root(images)
        for unit in self.units():
            x = unit(x)
        return x

    def units(self) -> Iterator[nn.Module]:
        """The units of all stages by depth."""
        for stage in self.stages:
            yield from stage.children()


class Root(nn.Module):
    """A convolution of 7x7 and a max-pooling of 3x3, each with stride 2."""

    def __init__(self, config: TrunkConfig, channels: int) -> None:
        super().__init__()
        self.conv = StdConv(config, channels, config.root_channels, 7, stride=2)
        self.norm = make_group_norm(config, config.root_channels) if config.form == "post" else None
        self.margin = config.padding
        self.border = POOL_PADDING_LOWEST if config.pool_padding == "lowest" else 0.0

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C', ceil(H/4), ceil(W/4)]"""
        x = self.conv(images)  # [B, C', ceil(H/2), ceil(W/2)]
        if self.norm is not None:
            x = relu(self.norm(x))
        top, bottom, left, right = compute_padding(x, 3, 2, self.margin)
        return max_pool2d(pad(x, (left, right, top, bottom), value=self.border), 3, 2)


class Bottleneck(nn.Module):
    """The layers of a bottleneck: 1x1, 3x3 with the stride, 1x1 to 4 times the channels.

    The shortcut has a convolution where the shape changes. In AxialResNet attention along the
    columns and then along the rows stands for the 3x3 (Appendix D.6).
    """

    def __init__(
        self,
        config: TrunkConfig,
        inputs: int,
        channels: int,
        stride: int,
        grid: tuple[int, int],  # (rows, columns) that enter, for the tables of axial attention
    ) -> None:
        super().__init__()
        outputs = BOTTLENECK_EXPANSION * channels
        post, axial = config.form == "post", config.spatial == "axial"
        normed = (channels, channels, outputs) if post else (inputs, channels, channels)
        self.norm1, self.norm2, self.norm3 = (make_group_norm(config, width) for width in normed)
        self.stride = stride
        self.conv1 = StdConv(config, inputs, channels, 1)
        self.conv2 = None if axial else StdConv(config, channels, channels, 3, stride)
        self.columns = (
            PositionSensitiveAxialAttention(channels, axis=2, length=grid[0]) if axial else None
        )
        self.rows = (
            PositionSensitiveAxialAttention(channels, axis=3, length=grid[1]) if axial else None
        )
        self.conv3 = StdConv(config, channels, outputs, 1)
        reshaped = stride > 1 or inputs != outputs
        self.shortcut = StdConv(config, inputs, outputs, 1, stride) if reshaped else None
        self.shortcut_norm = make_group_norm(config, outputs) if reshaped and post else None

    def spatial(self, y: Tensor) -> Tensor:
        """[B, c, h, w] -> [B, c, ceil(h / stride), ceil(w / stride)], where places see others"""
        if self.columns is None or self.rows is None:
            return self.conv2(y) if self.conv2 is not None else y
        y = self.rows(self.columns(y))
        # A window over the edge of an odd side averages the places that are there.
        return y if self.stride == 1 else avg_pool2d(y, 2, ceil_mode=True)


class PostActBottleneck(Bottleneck):
    """The official hybrids' unit: norms after convolutions, ReLU after the sum (ResNet v1.5)."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, c, h, w] -> [B, C', ceil(h / stride), ceil(w / stride)]"""
        shortcut = x
        if self.shortcut is not None and self.shortcut_norm is not None:
            shortcut = self.shortcut_norm(self.shortcut(x))
        y = relu(self.norm1(self.conv1(x)))
        y = relu(self.norm2(self.spatial(y)))
        return relu(shortcut + self.norm3(self.conv3(y)))


class PreActBottleneck(Bottleneck):
    """BiT's unit: norms before convolutions; a shortcut that reshapes starts after the first."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, c, h, w] -> [B, C', ceil(h / stride), ceil(w / stride)]"""
        y = relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        y = self.spatial(relu(self.norm2(y)))
        return shortcut + self.conv3(relu(self.norm3(y)))


def make_group_norm(config: TrunkConfig, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUP_NORM_GROUPS, channels, eps=config.group_norm_eps)
