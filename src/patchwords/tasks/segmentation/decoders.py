"""Decoders: from feature maps of a backbone to class logits on a grid.

| name | reads | source |
|---|---|---|
| linear | the last layer after its final norm | DINOv2's linear evaluation (arXiv 2304.07193) |
| pup | the last layer | SETR-PUP, progressive upsampling (arXiv 2012.15840, Fig. 1b) |
| mla | four layers of rising depth | SETR-MLA, multi-level aggregation (Fig. 1c) |
| mask | the last layer after its final norm | Segmenter's mask transformer (arXiv 2105.05633) |

Details as in the official code of Segmenter (decoder.py) and of SETR (setr_up_head.py,
setr_mla_head.py); auxiliary heads are left out. Logits are resized to the image by the caller: after
the classifier, never before.

Sizes: B batch, D width of the backbone, h w feature map, N = h*w patches, K classes, F width of the
decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.models.attention import Attention
from patchwords.models.layers import MLP, Dropout

MAX_WIDTH = 256  # of SETR's decoders, for backbones of 768 and more
MIN_WIDTH = 32
MASK_DEPTH, MASK_DROPOUT, MASK_HEAD_WIDTH = 2, 0.1, 64  # Segmenter's config.yml
PUP_STAGES = 4
FRESH_NORM_EPS = 1e-6
# name of a decoder's parameter -> whether weight decay falls on it
WEIGHT_DECAY_RULES = {
    r"decoder\.(.+\.)?norm\d?\.(weight|bias)": False,
    r"decoder\.class_tokens": False,
    r"decoder\.(.+\.)?(?<!norm\.)(?<!norm\d\.)weight": True,
    r"decoder\.(.+\.)?(?<!norm\.)(?<!norm\d\.)bias": False,
}


class LinearDecoder(nn.Module):
    """Batch norm over the channels, then a 1x1 convolution: D -> K."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(widths[-1])
        self.classifier = nn.Conv2d(widths[-1], classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """[B, D, h, w] -> [B, K, h, w]"""
        return self.classifier(self.norm(maps[-1]))


class ProgressiveUpsampling(nn.Module):
    """Four times a 3x3 convolution and twice the size, then the classifier."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        width = choose_decoder_width(widths[-1])
        self.norm = nn.LayerNorm(widths[-1], eps=FRESH_NORM_EPS)
        self.stages = nn.ModuleList(
            ConvNormRelu(width if stage else widths[-1], width) for stage in range(PUP_STAGES)
        )
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """[B, D, h, w] -> [B, K, 16 h, 16 w]"""
        x = norm_channels(self.norm, maps[-1])
        for stage in self.stages:
            x = F.interpolate(stage(x), scale_factor=2, mode="bilinear", align_corners=False)
        return self.classifier(x)


class MultiLevelAggregation(nn.Module):
    """Layers summed from the deepest up, each sum read by its own branch, the branches joined.

    Maps of one size are brought to four times that. A convolutional backbone has maps of several
    sizes: a sum is then resized on its way up, and all are brought to the largest, as in a feature
    pyramid (FPN).
    """

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        width = choose_decoder_width(widths[-1])
        self.norms = nn.ModuleList(Norm(inputs) for inputs in widths)
        self.lateral = nn.ModuleList(ConvNormRelu(inputs, width, 1) for inputs in widths)
        self.smooth = nn.ModuleList(ConvNormRelu(width, width) for _ in widths)
        self.branches = nn.ModuleList(
            nn.Sequential(ConvNormRelu(width, width // 2), ConvNormRelu(width // 2, width // 2))
            for _ in widths
        )
        self.classifier = nn.Conv2d(width // 2 * len(widths), classes, 3, padding=1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """[B, D, h, w] of each layer, the shallowest first -> [B, K, 4 h, 4 w] or [B, K, h, w]"""
        pyramid = len({features.shape[2:] for features in maps}) > 1
        height, width = maps[0].shape[2:]
        size = (height, width) if pyramid else (4 * height, 4 * width)
        total: Tensor | None = None
        joined = []
        for level in reversed(range(len(maps))):
            x = self.lateral[level](self.norms[level](maps[level]))  # [B, F, h, w]
            if total is not None:
                x = x + resize(total, x.shape[2:])
            total = x
            y = self.branches[level](self.smooth[level](x))  # [B, F/2, h, w]
            joined.append(resize(y, size, align_corners=True))
        return self.classifier(torch.cat(joined, dim=1))


class MaskTransformer(nn.Module):
    """A learned token for each class joins the patches; logits are products of both."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        width = widths[-1]
        heads = max(1, width // MASK_HEAD_WIDTH)
        self.classes = classes
        self.proj = nn.Linear(width, width)
        self.class_tokens = nn.Parameter(torch.empty(1, classes, width))
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(MASK_DEPTH))
        self.norm = nn.LayerNorm(width)
        self.proj_patch = nn.Linear(width, width, bias=False)
        self.proj_classes = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(classes)  # over the classes: it sets the scale of the logits

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """[B, D, h, w] -> [B, K, h, w]"""
        grid = maps[-1].shape[2:]
        x = self.proj(maps[-1].flatten(2).transpose(1, 2))  # [B, N, D]
        x = torch.cat([x, self.class_tokens.expand(len(x), -1, -1)], dim=1)  # [B, N + K, D]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        patches = F.normalize(self.proj_patch(x[:, : -self.classes]), dim=-1)  # [B, N, D]
        tokens = F.normalize(self.proj_classes(x[:, -self.classes :]), dim=-1)  # [B, K, D]
        logits = self.norm2(patches @ tokens.mT)  # [B, N, K]
        return logits.mT.unflatten(2, grid)


class DecoderBlock(nn.Module):
    """A pre-norm block without positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.dropout = Dropout(MASK_DROPOUT)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width, 4 * width, "erf", MASK_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x = x + self.dropout(self.attention(self.norm1(x), (1, x.shape[1])))
        return x + self.mlp(self.norm2(x))


class ConvNormRelu(nn.Module):
    """A convolution without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[B, I, h, w] -> [B, O, h, w]"""
        return F.relu(self.norm(self.conv(x)))


class Norm(nn.Module):
    """A layer norm over the channels of a map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=FRESH_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """[B, D, h, w] -> [B, D, h, w]"""
        return norm_channels(self.norm, x)


def norm_channels(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Apply a layer norm over the channels of [B, D, h, w]."""
    return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def resize(x: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """Resize maps [B, F, h, w] bilinearly, if need be."""
    if tuple(x.shape[2:]) == tuple(size):
        return x
    return F.interpolate(x, tuple(size), mode="bilinear", align_corners=align_corners)


def choose_decoder_width(width: int) -> int:
    """Choose F: SETR's 256 for a base or large model, a third of the width below.

    >>> choose_decoder_width(1024), choose_decoder_width(192), choose_decoder_width(32)
    (256, 64, 32)
    """
    return min(MAX_WIDTH, max(MIN_WIDTH, width // 3 // 8 * 8))


@dataclass(frozen=True)
class DecoderRow:
    """One decoder: its class, how many layers it reads, and after which norm."""

    decoder: type[nn.Module]
    layers: int
    final_norm: bool  # the backbone's own; else the decoder has a fresh one


DECODERS = {
    "linear": DecoderRow(LinearDecoder, 1, final_norm=True),
    "pup": DecoderRow(ProgressiveUpsampling, 1, final_norm=False),
    "mla": DecoderRow(MultiLevelAggregation, 4, final_norm=False),
    "mask": DecoderRow(MaskTransformer, 1, final_norm=True),
}


def choose_layers(depth: int, count: int) -> list[int]:
    """Choose `count` layers that end the equal parts of the depth, as SETR-MLA does.

    >>> choose_layers(24, 4), choose_layers(12, 1), choose_layers(3, 4)
    ([5, 11, 17, 23], [11], [0, 1, 2])
    """
    ends = {max(0, depth * (part + 1) // count - 1) for part in range(count)}
    return sorted(ends)


def init_decoder(decoder: nn.Module, generator: torch.Generator) -> None:
    """Initialise: classifiers N(0, 0.01), convolutions by He, the rest as in Segmenter."""
    for name, values in decoder.named_parameters():
        with torch.no_grad():
            init_parameter(decoder, name, values, generator)


def init_parameter(
    decoder: nn.Module, name: str, values: Tensor, generator: torch.Generator
) -> None:
    """Fill one parameter in place."""
    if name == "classifier.weight":
        values.normal_(0.0, 0.01, generator=generator)  # as mmsegmentation and DINOv3
    elif values.ndim == 4:
        fan_in = values[0].numel()
        values.normal_(0.0, (2 / fan_in) ** 0.5, generator=generator)
    elif name in {"proj_patch.weight", "proj_classes.weight"}:
        values.normal_(0.0, values.shape[0] ** -0.5, generator=generator)
    elif values.ndim > 1:  # dense layers and class tokens
        nn.init.trunc_normal_(values, std=0.02, a=-0.04, b=0.04, generator=generator)
    else:  # norms and biases
        values.fill_(float(name.endswith("weight")))
