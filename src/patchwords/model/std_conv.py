"""Convolution with standardised weights (Qiao et al., arXiv 1903.10520), and how it is padded.

Sizes: B batch, I input and O output channels, H W of a feature map, k of a square kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from patchwords.model.trunk_config import TrunkConfig

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
        """[B, I, H, W] -> [B, O, ceil(H / stride), ceil(W / stride)]"""
        size, stride = self.kernel_size[0], self.stride[0]
        top, bottom, left, right = compute_padding(x, size, stride, self.margin)
        if (top, left) != (bottom, right):  # the convolution itself pads both ends alike
            x = pad(x, (left, right, top, bottom))
            top = left = 0
        weight = self.weight if self.form is None else standardise_weight(self.weight, self.form)
        return conv2d(x, weight, None, stride, (top, left))


def standardise_weight(weight: Tensor, form: str) -> Tensor:
    """[O, I, k, k] -> the same, each output's kernel with mean 0 and standard deviation about 1.

    Statistics are those of the population, over I, k and k. `form` says where the small number
    stands (TrunkConfig.standardise): under the root or beside it. Of a constant kernel the
    deviation is 0, where torch takes the root's gradient for 0: no NaN comes back.
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
    """By how much to pad [B, C, H, W] above, below, left and right: ceil(H / stride) windows fit.

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
