"""One small model of every kind that can be trained, for images of 12x12 pixels."""

from __future__ import annotations

from dataclasses import replace

import torch

from patchwords.models.build import Model, ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig

SIDE = (12, 12)
VIT = ViTConfig(  # 3x3 patches
    patch_size=4,
    width=16,
    depth=2,
    heads=2,
    mlp_width=22,
    image_size=SIDE,
    num_classes=10,
    dropout=0.1,
    drop_path=0.2,
)
EVERY_KIND: dict[str, ModelConfig] = {
    "2d at every block": VIT.with_settings(position="2d", position_at="every"),
    "1d shared": VIT.with_settings(position_at="shared", representation_size=7),
    "relative": VIT.with_settings(position="relative"),
    "sincos2d and map": VIT.with_settings(position="sincos2d", classifier="map"),
    "axial": VIT.with_settings(mixer="axial", position="relative"),
    "local": VIT.with_settings(mixer="local", window=3, position="relative"),
    "pooling": VIT.with_settings(mixer="pooling", position="2d"),
    "token MLP": VIT.with_settings(mixer="mlp"),
    "identity": VIT.with_settings(mixer="identity", position="none"),
    "hybrid": VIT.with_settings(trunk=replace(HYBRID_TRUNK, units=(1,)), patch_size=1),
    "hybrid of a root": VIT.with_settings(trunk=replace(HYBRID_TRUNK, units=()), patch_size=1),
    "BiT": ResNetConfig(trunk=replace(BIT_TRUNK, units=(1, 1)), image_size=SIDE, num_classes=10),
    "AxialResNet": ResNetConfig(
        trunk=replace(HYBRID_TRUNK, units=(1, 1), spatial="axial"), image_size=SIDE, num_classes=10
    ),
}


def lively(config: ModelConfig) -> Model:
    """A model of that shape in which no weight is 0: below a new head nothing would learn."""
    model = build_model(config)
    init_weights(model, seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model
