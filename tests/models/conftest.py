"""A tiny model with distinct sizes and random weights everywhere, so that nothing can cancel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from drawn import drawn
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT

TINY = ViTConfig(
    patch_size=3,
    width=10,
    depth=3,
    heads=2,
    mlp_width=23,
    image_size=(12, 15),  # 4 x 5 patches
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
    return torch.randn(5, 2, 12, 15, generator=generator, dtype=torch.float64)
