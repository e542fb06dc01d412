"""A few plain convolutions before the patches, in place of a ResNet.

Source: the tokenizer of CCT (Hassani et al. 2021, arXiv 2104.05704; utils/tokenizer.py of
SHI-Labs/Compact-Transformers): convolutions without bias and without norms.

Sizes: B batch, C channels of the image, H W image, C' channels and h w size of a feature map.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from patchwords.models.resnet.config import ConvStemConfig


class ConvStem(nn.Module):
    """Layers of a 3x3 convolution, ReLU, and a 3x3 max-pooling with stride 2."""

    def __init__(self, config: ConvStemConfig, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for outputs in config.layer_channels:
            self.layers.append(nn.Conv2d(channels, outputs, 3, padding=1, bias=False))
            channels = outputs

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C', h, w]; h, w: ConvStemConfig.grid"""
        x = images.to(memory_format=torch.channels_last)  # a CPU pools three times as fast
        for conv in self.layers:
            # The largest of ReLUs is the ReLU of the largest, and that is a fourth of the work.
            x = relu(max_pool2d(conv(x), 3, stride=2, padding=1))
        return x
