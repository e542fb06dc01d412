"""A model in two: the layers in front of those that learn, and the rest.

Sizes: B images, C channels, H W image. What goes from the front to the rest is `activations`: the
tokens [B, T, D] or feature maps [B, c, h, w] that enter the first layer that learns. Where the
head alone learns they are pooled, [B, D] or [B, C'], as pooling learns nothing, but for "map".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.model.config import ViTConfig
from patchwords.model.family import Model
from patchwords.model.vit import ViT
from patchwords.train.config import parse_train_layers


@dataclass(frozen=True)
class FrozenBackbone:
    """Where `--train` cuts a model."""

    model: Model
    first: int  # the first layer that learns; the number of layers: the head alone does

    def activations(self, images: Tensor) -> Tensor:
        """Normalised [B, C, H, W] -> what the frozen layers make of them"""
        model = self.model
        if self.first < model.config.layers:
            return model.forward_until(images, self.first)
        if isinstance(model, ViT):  # as its forward pass has it, to the bit
            features = model.encode(images, model.config.read)
        else:
            features = model.forward_features(images)
        return features if self.pool_learns else model.head.pooled(features)

    def rest(self, activations: Tensor) -> Tensor:
        """-> [B, classes]"""
        model = self.model
        if self.first < model.config.layers:
            return model.forward_from(activations, self.first)
        if self.pool_learns:
            return model.forward_head(activations)
        return model.head.classify(activations)

    @property
    def pool_learns(self) -> bool:
        config = self.model.config
        return isinstance(config, ViTConfig) and config.classifier == "map"

    @property
    def draws(self) -> bool:
        """Whether the frozen layers draw in training: dropout, or stochastic depth.

        Stochastic depth spares the first layer.
        """
        config = self.model.config
        if not isinstance(config, ViTConfig):
            return False
        return config.dropout > 0 or (config.drop_path > 0 and self.first > 1)

    def of_one(self, preprocess: Preprocess, device: Device) -> Tensor:
        """The activations of one black image [1, ...], for their shape and type."""
        shape = (1, preprocess.channels, *preprocess.image_size)
        black = torch.zeros(shape, dtype=torch.uint8, device=device.torch_device)
        with torch.no_grad(), device.autocast():
            return self.activations(preprocess.normalise(black))


def build_frozen_backbone(model: Model, train: str) -> FrozenBackbone | None:
    """By `--train`; None where everything learns."""
    learning = parse_train_layers(train)
    return None if learning is None else FrozenBackbone(model, model.config.layers - learning)
