"""A tiny model with distinct sizes and random weights everywhere, so that nothing can cancel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from drawn import drawn
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT
from patchwords.models.zoo import resolve_model

TINY = ViTConfig(
    patch_size=3,
    width=20,
    depth=3,
    heads=2,
    mlp_width=23,
    image_size=(6, 9),  # 2 x 3 patches
    channels=2,
    num_classes=7,
)


@pytest.fixture
def tiny() -> Callable[..., ViT]:
    """settings -> TINY with them, in float64, every parameter drawn from a normal."""

    def build(seed: int = 0, **settings: object) -> ViT:
        return drawn(ViT(TINY.with_settings(**settings)).double(), seed)

    return build


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 2, 6, 9, generator=generator, dtype=torch.float64)


@pytest.fixture
def resnet() -> ResNet:
    config = resolve_model("BiT-R50x1").config.with_settings(units=(1, 1, 1, 1), num_classes=3)
    model = ResNet(config).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        model.trunk.root.conv.weight.normal_(0.3, 2.0, generator=generator)
    return model
