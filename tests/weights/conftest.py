from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from drawn import drawn
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT

TINY = ViTConfig(
    patch_size=4,
    width=10,
    depth=2,
    heads=2,
    mlp_width=23,
    image_size=(12, 20),  # 3 x 5 patches
    num_classes=7,
)


@pytest.fixture
def tiny() -> Callable[..., ViT]:
    """settings -> TINY with them; every parameter is drawn, so that nothing can cancel."""

    def build(**settings: object) -> ViT:
        return drawn(ViT(TINY.with_settings(**settings)))

    return build


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 3, 12, 20, generator=torch.Generator().manual_seed(1))
