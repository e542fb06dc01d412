"""The convolutional part of a ResNet or of a hybrid: root and stages (Sec. 4.1).

Sizes: B batch, C channels of the image, H W image, C' channels and h w size of a feature map.
Sources: vit_jax/models_resnet.py and models_vit.py (form "post"), bit_pytorch/models.py of
big_transfer (form "pre"); models/resnet/config.py says how they differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, interpolate, max_pool2d, pad, relu

from patchwords.models.resnet.config import (
    AXIAL_HEADS,
    BOTTLENECK_EXPANSION,
    GROUP_NORM_GROUPS,
    TrunkConfig,
    halve_grid,
)

# Convolution with standardised weights (Qiao et al., arXiv 1903.10520), and how it is padded.
#
# Sizes: B batch, I input and O output channels, H W of a feature map, k of a square kernel.


VARIANCE_EPS = {"var+1e-8": 1e-8, "var+1e-10": 1e-10}


class StdConv(nn.Conv2d):
    """A convolution without bias; its weights are standardised at every forward pass."""

    def __init__(
        self, config: TrunkConfig, inputs: int, outputs: int, size: int, stride: int = 1
    ) -> None:
        super().__init__(inputs, outputs, size, stride=stride, bias=False)
        self.form: str | None = config.standardise  # None: the weights are so already (export)
        self.margin = config.padding

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images [B, I, H, W] to [B, O, ceil(H / stride), ceil(W / stride)]."""
        size, stride = self.kernel_size[0], self.stride[0]
        top, bottom, left, right = compute_padding(x, size, stride, self.margin)
        if (top, left) != (bottom, right):  # the convolution itself pads both ends alike
            x = pad(x, (left, right, top, bottom))
            top = left = 0
        weight = self.weight if self.form is None else standardise_weight(self.weight, self.form)
        if is_unsafe_in_bf16(x, size, stride, (top, left)):
            return conv2d(x.mT, weight.mT, None, stride, (left, top)).mT
        return conv2d(x, weight, None, stride, (top, left))


def is_unsafe_in_bf16(x: Tensor, size: int, stride: int, padding: tuple[int, int]) -> bool:
    """Return whether oneDNN's bfloat16 kernel reads memory that is not the image's.

    On CPUs with AMX it does so in a strided convolution of several rows and one column: where NaNs
    lie there, the result has some (torch 2.13). Transposed images do not meet it.
    """
    if x.device.type != "cpu" or stride == 1:
        return False
    rows, columns = ((x.shape[2 + i] + 2 * padding[i] - size) // stride for i in (0, 1))
    return columns + 1 == 1 < rows + 1 and (
        x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    )


def standardise_weight(weight: Tensor, form: str) -> Tensor:
    """Standardise the kernel of each output of [O, I, k, k]: mean 0, deviation about 1.

    Statistics are those of the population, over I, k and k. `form` says where the small number
    stands (TrunkConfig.standardise): under the root or next to it. The deviation of a
    constant kernel is 0; torch takes 0 as the gradient of that root, so no NaN comes back.
    """
    # bfloat16 cannot tell the small numbers from 0; a mean over thousands of weights needs more.
    exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
    axes = (1, 2, 3)
    if form in VARIANCE_EPS:
        variance, mean = torch.var_mean(exact, axes, correction=0, keepdim=True)
        divisor = (variance + VARIANCE_EPS[form]).sqrt()
    else:
        deviation, mean = torch.std_mean(exact, axes, correction=0, keepdim=True)
        divisor = deviation + 1e-5
    return ((exact - mean) / divisor).to(weight.dtype)


def compute_padding(x: Tensor, size: int, stride: int, padding: str) -> tuple[int, int, int, int]:
    """Compute the padding (top, bottom, left, right) with which ceil(H / stride) windows fit.

    - same: XLA's SAME, as much as the last window needs, one more behind than before if odd;
    - symmetric: half a window at each end.
    """
    if padding == "symmetric":
        return (size // 2,) * 4
    before_after = []
    for side in x.shape[-2:]:
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        before_after += [total // 2, total - total // 2]
    top, bottom, left, right = before_after
    return top, bottom, left, right


# Attention along one axis of a feature map: what AxialResNet has for 3x3 convolutions (App. D.6).
#
# It is "position-sensitive axial attention" (Wang et al., arXiv 2003.07853) as in axial-deeplab,
# lib/models/axialnet.py: queries, keys and values each meet an embedding of the offset, shared by
# the heads; queries and keys are half as wide as values; no projection follows.
#
# The source has three BatchNorms inside: on q k v, on the similarities, on the output. When it
# predicts they are constant factors and offsets, which the weights, biases and tables beside them
# take on, so there is none here. A GroupNorm would be another thing: its statistics come from the
# whole image, and a row would see the others through them. In the place of the second, similarities
# are divided by the root of the width of a query as in Eq. 6; in that of the third, the unit has
# its GroupNorm after both attentions.
#
# Sizes: B batch, C channels, h w of the feature map, n places along the axis, m lines of them, K
# heads, Dv = C/K width of a value, Dq = Dv/2 of a query.


class PositionSensitiveAxialAttention(nn.Module):
    """Each column (axis 2) or each row (axis 3) attends over itself and sees no other one.

    `relative` holds a row for every offset (query - key) from -(length - 1) to length - 1, its
    columns those for queries, keys and values. It is stretched to maps of another length.
    """

    def __init__(self, channels: int, axis: int, length: int) -> None:
        super().__init__()
        self.axis = axis
        value = channels // AXIAL_HEADS
        self.widths = (value // 2, value // 2, value)  # Dq, Dq, Dv
        self.qkv = nn.Linear(channels, 2 * channels)  # rows: heads, then (q, k, v), then width
        self.relative = nn.Parameter(torch.empty(2 * length - 1, 2 * value))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C, h, w]"""
        lines = x.permute(0, 5 - self.axis, self.axis, 1)  # [B, m, n, C]
        qkv = self.qkv(lines).unflatten(-1, (AXIAL_HEADS, -1)).transpose(2, 3)  # [B, m, K, n, 2 Dv]
        q, k, v = qkv.split(self.widths, dim=-1)
        of_q, of_k, of_v = self.offsets(x.shape[self.axis]).split(self.widths, dim=-1)
        similarity = q @ k.mT  # [B, m, K, n, n], rows are queries
        similarity = similarity + torch.einsum("bmkid,ijd->bmkij", q, of_q)
        similarity = similarity + torch.einsum("bmkjd,ijd->bmkij", k, of_k)
        weights = (similarity * self.widths[0] ** -0.5).softmax(-1)
        y = weights @ v + torch.einsum("bmkij,ijd->bmkid", weights, of_v)  # [B, m, K, n, Dv]
        y = y.transpose(2, 3).flatten(3)  # [B, m, n, C]
        return y.movedim((0, 1, 2, 3), (0, 5 - self.axis, self.axis, 1))

    def offsets(self, length: int) -> Tensor:
        """Look up the embedding of each (query, key) on a line of n places: [n, n, 2 Dv]."""
        place = torch.arange(length, device=self.relative.device)
        offset = place[:, None] - place + length - 1  # from 0 up
        return resize_axis_table(self.relative, length)[offset]


def resize_axis_table(table: Tensor, length: int) -> Tensor:
    """Resize [offsets, d] to [2 length - 1, d], linearly; the ends and the middle stay."""
    if table.shape[0] == 2 * length - 1:
        return table
    if length == 1:  # one offset is left, and it is 0; interpolation would take an end
        return table[table.shape[0] // 2][None]
    grown = interpolate(table.T[None], 2 * length - 1, mode="linear", align_corners=True)
    return grown[0].T


POOL_PADDING_LOWEST = float("-inf")


class Trunk(nn.Module):
    """Root and stages. `image_size` matters to axial units only: their tables are made for it."""

    def __init__(self, config: TrunkConfig, channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        width = config.root_channels
        plain = config.form == "plain"
        self.root = (PlainLayer if plain else Root)(config, channels, width)
        self.stages = nn.ModuleList()
        if plain:
            for stage, count in enumerate(config.units):
                outputs = width * 2 ** (stage + 1)
                same_size = [PlainUnit(config, outputs) for _ in range(count - 1)]
                layer = PlainLayer(config, outputs // 2, outputs)
                self.stages.append(nn.Sequential(layer, *same_size))
            return
        unit = PostActBottleneck if config.form == "post" else PreActBottleneck
        grid = halve_grid(halve_grid(image_size))
        inputs = config.root_channels
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
        """Compute the output of the last unit, [B, C', h, w]; h, w are TrunkConfig.grid."""
        x = self.root(images)
        for unit in self.units():
            x = unit(x)
        return x

    def units(self) -> Iterator[nn.Module]:
        """List the units of all stages by depth."""
        for stage in self.stages:
            yield from stage.children()


class Root(nn.Module):
    """A convolution of 7x7 and a max-pooling of 3x3, each with stride 2."""

    def __init__(self, config: TrunkConfig, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = StdConv(config, channels, outputs, 7, stride=2)
        self.norm = make_group_norm(config, outputs) if config.form == "post" else None
        self.margin = config.padding
        self.border = POOL_PADDING_LOWEST if config.pool_padding == "lowest" else 0.0

    def forward(self, images: Tensor) -> Tensor:
        """Compute [B, C', ceil(H/4), ceil(W/4)] of images [B, C, H, W]."""
        x = self.conv(images)  # [B, C', ceil(H/2), ceil(W/2)]
        if self.norm is not None:
            x = relu(self.norm(x))
        top, bottom, left, right = compute_padding(x, 3, 2, self.margin)
        return max_pool2d(pad(x, (left, right, top, bottom), value=self.border), 3, 2)


class PlainLayer(nn.Module):
    """A 3x3 convolution, batch norm, ReLU, and a max-pooling that halves the sides."""

    def __init__(self, config: TrunkConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = make_plain_conv(config, inputs, outputs)
        self.norm = TrunkBatchNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[B, I, h, w] -> [B, O, ceil(h / 2), ceil(w / 2)]"""
        x = x.to(memory_format=torch.channels_last)  # half of the time of a step on a CPU
        # The largest of ReLUs is the ReLU of the largest, and that is a fourth of the work.
        return relu(max_pool2d(self.norm(self.conv(x)), 2, ceil_mode=True))


class PlainUnit(nn.Module):
    """Two 3x3 convolutions, each with batch norm and ReLU, added to their input."""

    def __init__(self, config: TrunkConfig, channels: int) -> None:
        super().__init__()
        self.conv1 = make_plain_conv(config, channels, channels)
        self.norm1 = TrunkBatchNorm(channels)
        self.conv2 = make_plain_conv(config, channels, channels)
        self.norm2 = TrunkBatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C', h, w] -> [B, C', h, w]"""
        y = relu(self.norm1(self.conv1(x)))
        return x + relu(self.norm2(self.conv2(y)))


def make_plain_conv(config: TrunkConfig, inputs: int, outputs: int) -> StdConv:
    conv = StdConv(config, inputs, outputs, 3)
    conv.form = None  # the norm makes the scale of the weights irrelevant
    return conv


class TrunkBatchNorm(nn.Module):
    """A batch norm whose statistics stay as they are while its weights are frozen.

    A frozen layer then gives the same for an image in every step, whatever is in its batch.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C', h, w] -> [B, C', h, w]"""
        learns = self.training and self.weight.requires_grad
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, learns, 0.1, 1e-5
        )


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
