"""ResNet (BiT): the paper's baseline (Sec. 4.1), with GroupNorm and standardised convolutions.

Sizes: B batch, C channels of the image, H W image, C' channels and h w size of a feature map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

from patchwords.errors import ConfigError
from patchwords.model.heads import zero_classifier
from patchwords.model.images import check_images, check_layers
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk import Trunk, group_norm


class ResNet(nn.Module):
    """Images in [-1, 1] to logits. `create_model` gives one with initial weights."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        trunk = config.trunk
        self.trunk = Trunk(trunk, config.channels, config.image_size)
        self.norm = group_norm(trunk, trunk.channels) if trunk.form == "pre" else None
        self.head = MeanHead(trunk.channels, config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]"""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C', h, w], after the final GroupNorm and ReLU"""
        check_images(images, self.config.channels)
        features = self.trunk(images)
        # In form "post" each unit ends in a ReLU, and no norm follows.
        return features if self.norm is None else relu(self.norm(features))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """[B, C', h, w] -> [B, classes], or with `pre_logits` what the classifier sees, [B, C']"""
        return self.head(features, pre_logits)

    def forward_intermediates(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """[B, C, H, W] -> {unit: [B, c, h', w']}, outputs of residual units.

        Units count through all stages from 0, or from the end if negative, and are keys as they
        were asked for (all of them by default). Nothing is computed after the deepest one.
        """
        count = self.config.layers
        asked = range(count) if layers is None else layers
        wanted = set(check_layers(list(asked), count))
        check_images(images, self.config.channels)
        outputs: dict[int, Tensor] = {}
        x = self.trunk.root(images)
        for index, unit in enumerate(self.trunk.units()):
            if index > max(wanted, default=-1):
                break
            x = unit(x)
            if index in wanted:
                outputs[index] = x
        return {layer: outputs[layer % count] for layer in asked}

    def attention(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Raises ConfigError: a ResNet weighs no tokens. It is here because a ViT has it."""
        raise ConfigError("a ResNet has no attention among tokens to look at: a ViT has")

    def reset_head(self, num_classes: int) -> None:
        """A new classifier, all zero (Sec. 3.2)."""
        self.config = self.config.with_settings(num_classes=num_classes, head_bias=0.0)
        self.head.linear = zero_classifier(
            self.head.linear, self.config.trunk.channels, num_classes
        )


class MeanHead(nn.Module):
    """The mean over space and the classifier."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """[B, C', h, w] -> [B, classes], or with `pre_logits` [B, C']"""
        y = features.mean(dim=(2, 3))
        return y if pre_logits else self.linear(y)
