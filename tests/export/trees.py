"""A small model of seven trees, every parameter drawn, with names that are hard to write down."""

from __future__ import annotations

import torch

from drawn import drawn
from patchwords.data.preprocess import Preprocess
from patchwords.models.build import ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.weights.pretrained import Pretrained

TINY = ViTConfig(
    patch_size=4,
    width=12,
    depth=1,
    heads=3,
    mlp_width=23,
    image_size=(12, 20),  # 3 x 5 patches
    num_classes=7,
)
LABELS = ("ash", "birch", 'the "elm"', "Föhre", "<oak> & co", "a\nb", "木")
PREPROCESS = {"crop_fraction": 0.8, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}


def make(config: ModelConfig = TINY, **preprocess: object) -> Pretrained:
    """A model of this config with what it needs to answer for photos."""
    model = drawn(build_model(config))
    settings = {**PREPROCESS, "image_size": config.image_size, **preprocess}
    return Pretrained(model, Preprocess.from_dict(settings), LABELS, "ViT-tiny/4")


def noise(count: int) -> torch.Tensor:
    """uint8 [count, 3, 12, 20]"""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 3, 12, 20), generator=generator, dtype=torch.uint8)
