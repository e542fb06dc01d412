"""ResNet (BiT): the paper's baseline (Sec. 4.1), with GroupNorm and standardised convolutions.

Sizes: B batch, C channels of the image, H W image, C' channels and h w size of a feature map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from patchwords.errors import ConfigError
from patchwords.models.checks import check_images, check_layer_boundary, check_layer_indices
from patchwords.models.heads import make_zero_classifier
from patchwords.models.resnet.config import ResNetConfig
from patchwords.models.resnet.trunk import Trunk, make_group_norm


class ResNet(nn.Module):
    """ResNet (BiT): images in [-1, 1] to logits. `create_model` builds one with weights."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        trunk = config.trunk
        self.trunk = Trunk(trunk, config.channels, config.image_size)
        self.norm = make_group_norm(trunk, trunk.channels) if trunk.form == "pre" else None
        self.head = AveragePoolHead(trunk.channels, config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes] of images [B, C, H, W]."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Compute the feature map [B, C', h, w] after the final GroupNorm and ReLU."""
        check_images(images, self.config.channels)
        return self.finish(self.trunk(images))

    def represent(self, images: Tensor) -> Tensor:
        """Compute the features that the classifier sees, [B, C'], of images [B, C, H, W]."""
        return self.forward_head(self.forward_features(images), pre_logits=True)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits of a feature map [B, C', h, w]; with `pre_logits` the features before."""
        return self.head(features, pre_logits)

    def forward_intermediates(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """Compute outputs of residual units by index, each [B, c, h', w'].

        Units count through all stages from 0, or from the end if negative, and are the keys as
        given; default: all. Nothing is computed after the deepest one.
        """
        count = self.config.layers
        keys = range(count) if layers is None else layers
        indices = set(check_layer_indices(list(keys), count))
        check_images(images, self.config.channels)
        outputs: dict[int, Tensor] = {}
        x = self.trunk.root(images)
        for index, unit in enumerate(self.trunk.units()):
            if index > max(indices, default=-1):
                break
            x = unit(x)
            if index in indices:
                outputs[index] = x
        return {layer: outputs[layer % count] for layer in keys}

    def forward_dense(self, images: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """Compute `forward_features`, [B, C', h, w], or outputs of units of one stage.

        Outputs of several units are joined along the channels, as a ViT's `forward_dense` does.
        """
        if layers is None:
            return self.forward_features(images)
        outputs = self.forward_intermediates(images, layers)
        maps = [outputs[layer] for layer in layers]
        if len({features.shape[2:] for features in maps}) > 1:
            raise ConfigError(
                f"units {', '.join(map(str, layers))} have feature maps of several sizes: "
                "choose units of one stage"
            )
        return torch.cat(maps, dim=1)

    def forward_until(self, images: Tensor, layer: int) -> Tensor:
        """Compute the input of unit `layer`, [B, c, h', w']; `layers`: the output of the last."""
        if check_layer_boundary(layer, self.config.layers) == 0:
            check_images(images, self.config.channels)
            return self.trunk.root(images)
        return self.forward_intermediates(images, [layer - 1])[layer - 1]

    def forward_from(self, x: Tensor, layer: int) -> Tensor:
        """Compute logits [B, classes] of the input of unit `layer`, [B, c, h', w']."""
        check_layer_boundary(layer, self.config.layers)
        for unit in islice(self.trunk.units(), layer, None):
            x = unit(x)
        return self.forward_head(self.finish(x))

    def finish(self, features: Tensor) -> Tensor:
        """Apply the final norm. Other forms than "pre" end in a ReLU and have none."""
        return features if self.norm is None else relu(self.norm(features))

    def attention(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Raise ConfigError: a ResNet has no attention, unlike a ViT."""
        raise ConfigError("a ResNet has no attention among tokens to look at: a ViT has")

    @property
    def num_features(self) -> int:
        """C', channels of the features that the classifier sees."""
        return self.config.trunk.channels

    def get_classifier(self) -> nn.Linear:
        """Return the layer that computes the logits."""
        return self.head.linear

    def reset_head(self, num_classes: int) -> None:
        """Replace the classifier by zeros (Sec. 3.2)."""
        self.config = self.config.with_settings(num_classes=num_classes, head_bias=0.0)
        self.head.linear = make_zero_classifier(
            self.head.linear, self.config.trunk.channels, num_classes
        )


class AveragePoolHead(nn.Module):
    """Mean over space, then the classifier."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits of a feature map [B, C', h, w]; with `pre_logits` its mean, [B, C']."""
        return self.classify(self.pooled(features), pre_logits)

    def pooled(self, features: Tensor) -> Tensor:
        """Average a feature map [B, C', h, w] over space: [B, C']."""
        return features.mean(dim=(2, 3))

    def classify(self, y: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits of pooled features [B, C']; with `pre_logits` return them."""
        return y if pre_logits else self.linear(y)
