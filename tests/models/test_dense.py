"""Dense features: [B, D, H/P, W/P] from every kind of model, on any grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model

Tiny = Callable[..., ViT]

KINDS: list[dict[str, Any]] = [
    {},
    {"classifier": "map"},
    {"position": "2d", "position_at": "every"},
    {"position": "relative"},
    {"mixer": "axial"},
    {"mixer": "local", "window": 3, "position": "none"},
    {"mixer": "pooling", "classifier": "gap"},
]


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("grid", [(4, 5), (7, 3), (3, 11)])
def test_a_place_of_the_map_has_the_features_of_its_patch(
    tiny: Tiny, settings: dict[str, Any], grid: tuple[int, int]
) -> None:
    model = tiny(**settings)
    images = torch.randn(2, 2, grid[0] * 3, grid[1] * 3, dtype=torch.float64)
    dense = model.forward_dense(images)
    assert dense.shape == (2, model.num_features, *grid)
    tokens = model.forward_features(images)
    for row, column in [(0, 0), (grid[0] - 1, 0), (1, 2)]:
        patch = tokens[:, model.num_prefix_tokens + row * grid[1] + column]
        torch.testing.assert_close(dense[:, :, row, column], patch, atol=1e-12, rtol=0)


def test_several_layers_are_joined_along_the_channels(tiny: Tiny, images: Tensor) -> None:
    model = tiny()
    dense = model.forward_dense(images, [0, -1])
    width = model.num_features
    assert dense.shape == (5, 2 * width, 4, 5)
    torch.testing.assert_close(dense[:, width:], model.forward_dense(images))
    first = model.encoder.norm(model.forward_intermediates(images, [0])[0])[:, 1:]
    torch.testing.assert_close(dense[:, :width].flatten(2).mT, first)
    with pytest.raises(ConfigError, match="layer 3 does not exist"):
        model.forward_dense(images, [3])


@pytest.mark.parametrize(
    ("name", "stride"), [("R26+ViT-mu/32", 32), ("C+ViT-mu/4", 4), ("R+ViT-mu/16", 32)]
)
def test_a_hybrid_has_one_place_for_each_patch_of_its_feature_map(name: str, stride: int) -> None:
    model = create_model(name, image_size=64)
    images = torch.zeros(1, 3, 2 * stride, 3 * stride)
    assert model.forward_dense(images).shape == (1, model.num_features, 2, 3)


def test_a_resnet_has_its_feature_map() -> None:
    model = create_model("R26x1", units=(1, 2), image_size=64)
    images = torch.randn(2, 3, 64, 96)
    features = model.forward_features(images)
    assert torch.equal(model.forward_dense(images), features)
    assert features.shape == (2, model.num_features, 8, 12)
    assert model.forward_dense(images, [1, 2]).shape == (2, 2 * model.num_features, 8, 12)
    with pytest.raises(ConfigError, match="units 0, 1 have feature maps of several sizes"):
        model.forward_dense(images, [0, 1])


def test_the_words_of_timm(tiny: Tiny, images: Tensor) -> None:
    model = tiny(representation_size=6)
    pre_logits = model.forward_head(model.forward_features(images), pre_logits=True)
    assert pre_logits.shape == (5, 6)
    torch.testing.assert_close(model.get_classifier()(pre_logits), model(images))
    assert (model.num_features, model.num_prefix_tokens) == (10, 1)
    model.reset_head(4)
    assert model.get_classifier().out_features == 4


def test_a_part_that_is_replaced_takes_part(tiny: Tiny, images: Tensor) -> None:
    """Under the name of the code; the state dict keeps the names of version 0.1."""
    model = tiny()
    names = list(model.state_dict())
    before = model(images)
    embed = torch.nn.Conv2d(2, 10, 3, stride=3).double()
    model.patch_embed = embed
    assert list(model.state_dict()) == names
    assert model.state_dict()["embed.weight"].data_ptr() == embed.weight.data_ptr()
    assert not torch.equal(model(images), before)
