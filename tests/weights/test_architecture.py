"""A model's sizes have the name that they were made by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import HYBRID_TRUNK, ResNetConfig
from patchwords.models.zoo import list_models, resolve_model
from patchwords.weights.architecture import find_architecture_name, has_same_shape

SAME_SIZES = {"ViT-b/32": "ViT-S/32"}


@pytest.mark.parametrize(
    "name", [*list_models(), "ViT-B/20", "BiT-R101x2", "R101x2+ViT-H/16", "C+ViT-H/8"]
)
def test_names_are_found_again(name: str) -> None:
    config = resolve_model(name).config.with_settings(num_classes=7)
    assert find_architecture_name(config) == SAME_SIZES.get(name, name)


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(heads=6),
        ViTConfig(classifier="gap", mixer="pooling"),
        ViTConfig(patch_size=2, trunk=HYBRID_TRUNK, image_size=(256, 256)),
        ViTConfig(patch_size=1, trunk=replace(HYBRID_TRUNK, units=(1, 2, 3))),
        ResNetConfig(HYBRID_TRUNK),
        ResNetConfig().with_settings(units=(3, 4, 9)),
    ],
)
def test_other_sizes_have_none(config: ViTConfig | ResNetConfig) -> None:
    assert find_architecture_name(config) is None


def test_two_names_of_one_shape() -> None:
    """ViT-b/32 is ViT-S/32 by another name; a trunk is compared as well."""

    def same(one: str, other: str, **settings: object) -> bool:
        return has_same_shape(resolve_model(one).config, resolve_model(other).config, settings)

    assert same("ViT-b/32", "ViT-S/32")
    assert same("ViT-S/16", "ViT-S/32", patch_size=16)
    assert not same("ViT-S/16", "ViT-S/32")
    assert not same("ViT-S/16", "ViT-S/16", depth=3)
    assert not same("ViT-S/16", "Axial-ViT-S/16")
    assert same("R50+ViT-B/16", "R50+ViT-B_16")
    assert not same("R50+ViT-B/32", "R50+ViT-B/16")
    assert not same("R50+ViT-B/32", "R26+ViT-B/32")
    assert not same("R50+ViT-B/32", "ViT-B/32")
    assert same("C+ViT-B/16", "C+B/16")
    assert not same("C+ViT-B/16", "C+ViT-B/8")
    assert not same("C+ViT-B/16", "R50+ViT-B/16")
    assert same("BiT-R50x1", "resnetv2_50x1_bit")
    assert not same("BiT-R50x1", "BiT-R50x3")
    assert not same("BiT-R50x1", "AxialResNet-50")
    assert not same("BiT-R50x1", "ViT-B/32")
