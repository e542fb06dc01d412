"""A convolutional stem before a ViT: CCT's tokenizer (arXiv 2104.05704)."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import max_pool2d, relu

from patchwords.errors import ConfigError
from patchwords.models.build import config_from_dict, config_to_dict
from patchwords.models.config import ViTConfig
from patchwords.models.conv_stem import ConvStem
from patchwords.models.cost import count_parameters
from patchwords.models.resnet.config import ConvStemConfig
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model, resolve_model
from patchwords.training.engine.optimizer import find_layer_index, has_weight_decay

SMALL = ViTConfig(
    patch_size=1,
    width=128,
    depth=5,
    heads=4,
    mlp_width=512,
    image_size=(32, 32),
    num_classes=10,
    classifier="gap",
    trunk=ConvStemConfig(),
)


def test_the_layers_are_those_of_cct() -> None:
    stem = ConvStem(ConvStemConfig((5, 7)), 3).double()
    images = torch.randn(2, 3, 9, 14, dtype=torch.float64)
    x = images
    for conv in stem.layers:
        x = max_pool2d(relu(conv(x)), kernel_size=3, stride=2, padding=1)
    torch.testing.assert_close(stem(images), x, atol=1e-12, rtol=0)
    assert list(stem.state_dict()) == ["layers.0.weight", "layers.1.weight"]


def test_the_encoder_in_the_box() -> None:
    """64 tokens, and about a million numbers; a name and settings make the same."""
    settings = {"width": 128, "depth": 5, "heads": 4, "mlp_width": 512, "image_size": 32}
    named = resolve_model("C+ViT-Ti/4").config.with_settings(
        **settings, num_classes=10, classifier="gap"
    )
    assert named == SMALL
    with torch.device("meta"):
        model = ViT(SMALL)
    assert SMALL.tokens == 64
    assert sum(one.numel() for one in model.parameters()) == count_parameters(SMALL) == 1_093_066


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (4, 6), (1, 3)])
def test_any_image_size(size: tuple[int, int]) -> None:
    with torch.device("meta"):
        model = ViT(SMALL.with_settings(image_size=size))
    grid = -(-size[0] // 4), -(-size[1] // 4)
    images = torch.empty(2, 3, *size, device="meta")
    assert model.config.grid == grid == model.grid(images)
    assert model.forward_features(images).shape == (2, grid[0] * grid[1], 128)
    assert model(images).shape == (2, 10)


def test_the_config_goes_through_json() -> None:
    table = json.loads(json.dumps(config_to_dict(SMALL)))
    assert table["trunk"] == {"layer_channels": [64, 128]}
    assert config_from_dict(table) == SMALL


def test_channels_of_the_image_are_not_those_of_the_stem() -> None:
    grey = SMALL.with_settings(channels=1)
    assert grey.channels == 1
    assert grey.trunk == ConvStemConfig()
    assert SMALL.with_settings(layer_channels=(8, 8, 8)).stride == 8
    with pytest.raises(ConfigError, match="a hybrid has no setting 'units'"):
        SMALL.with_settings(units=(1,))


@pytest.mark.parametrize("layer_channels", [(), 64, (64, 0), (64, 1.5), ("64",)])
def test_what_is_no_stem_is_refused(layer_channels: object) -> None:
    with pytest.raises(ConfigError, match="layer_channels must be"):
        ConvStemConfig(layer_channels)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "layer_channels"),
    [
        ("C+ViT-Ti/4", (64, 128)),
        ("C+Ti/8", (64, 128, 192)),
        ("c_vit_b_16", (64, 128, 256, 512)),
        ("C+ViT-mu/4", (32, 32)),
    ],
)
def test_channels_double_up_to_the_width(name: str, layer_channels: tuple[int, ...]) -> None:
    config = resolve_model(name).config
    assert config.trunk == ConvStemConfig(layer_channels)
    assert (config.patch_size, config.image_size) == (1, (224, 224))


def test_other_down_samplings_have_no_name() -> None:
    with pytest.raises(ConfigError, match=r"there is no C\+ViT-Ti/5, but C\+ViT-Ti/4, C\+ViT-Ti/8"):
        resolve_model("C+ViT-Ti/5")


def test_initial_weights_keep_the_variance_through_relus() -> None:
    model = create_model("C+ViT-Ti/4", image_size=32)
    for conv, inputs in zip(model.trunk.layers, (3, 64), strict=True):  # type: ignore[union-attr]
        assert float(conv.weight.detach().square().mean()) == pytest.approx(
            2 / (9 * inputs), rel=0.1
        )
    assert has_weight_decay("trunk.layers.0.weight")
    assert find_layer_index("trunk.layers.1.weight", SMALL) == 0
