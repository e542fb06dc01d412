"""A model's sizes have the name that they were made by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patchwords.model.config import ViTConfig
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import OFFICIAL
from patchwords.model.variants import list_models, resolve
from patchwords.weights.architecture import architecture_of

SAME_SIZES = {"ViT-b/32": "ViT-S/32"}


@pytest.mark.parametrize("name", [*list_models(), "ViT-B/20", "BiT-R101x2", "R101x2+ViT-H/16"])
def test_names_are_found_again(name: str) -> None:
    config = resolve(name).config.with_settings(num_classes=7)
    assert architecture_of(config) == SAME_SIZES.get(name, name)


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(heads=6),
        ViTConfig(classifier="gap", mixer="pooling"),
        ViTConfig(patch_size=2, trunk=OFFICIAL, image_size=(256, 256)),
        ViTConfig(patch_size=1, trunk=replace(OFFICIAL, units=(1, 2, 3))),
        ResNetConfig(OFFICIAL),
        ResNetConfig().with_settings(units=(3, 4, 9)),
    ],
)
def test_other_sizes_have_none(config: ViTConfig | ResNetConfig) -> None:
    assert architecture_of(config) is None
