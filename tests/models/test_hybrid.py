from __future__ import annotations

from typing import Any

import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.resnet.config import TrunkConfig
from patchwords.models.resnet.trunk import StdConv
from patchwords.models.vit import ViT

TINY = ViTConfig(width=192, depth=12, heads=3, mlp_width=768)
SMALL = ViTConfig(width=384, depth=12, heads=6, mlp_width=1536)
BASE = ViTConfig()
LARGE = ViTConfig(width=1024, depth=24, heads=16, mlp_width=4096)
R26, R50, R50_EXTENDED = (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 9)


def hybrid(vit: ViTConfig, units: tuple[int, ...], patch_size: int = 1, **settings: Any) -> ViT:
    trunk = TrunkConfig(units=units)
    with torch.device("meta"):
        return ViT(vit.with_settings(trunk=trunk, patch_size=patch_size, **settings))


@pytest.mark.parametrize(
    ("vit", "units", "patch_size", "side", "parameters"),
    [
        # Of vit_jax/models_test.py. The first one's patches of 8 follow a stride of 4.
        (TINY, (), 8, 7, 6_337_704),
        (SMALL, R26, 1, 7, 36_431_912),
        (BASE, R26, 1, 7, 101_383_976),
        (BASE, R50_EXTENDED, 1, 14, 98_659_112),
        (LARGE, R50, 1, 7, 328_994_856),
        # Of the paper's Table 6 alone: counted out.
        (BASE, R50, 1, 7, 110_945_832),
        (LARGE, R50_EXTENDED, 1, 14, 316_483_624),
    ],
    ids=["R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/16", "R50+L/32", "R50+B/32", "R50+L/16"],
)
def test_parameters_and_tokens_are_the_published_ones(
    vit: ViTConfig, units: tuple[int, ...], patch_size: int, side: int, parameters: int
) -> None:
    model = hybrid(vit, units, patch_size)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.config.grid == (side, side)
    images = torch.empty(1, 3, 224, 224, device="meta")
    assert model.tokens(images).shape == (1, side**2 + 1, vit.width)
    assert model(images).shape == (1, 1000)


def little(patch_size: int = 1, image_size: tuple[int, int] = (24, 40)) -> ViT:
    vit = ViTConfig(width=10, depth=2, heads=2, mlp_width=23, channels=2, num_classes=7)
    model = hybrid(vit, (1, 1), patch_size, image_size=image_size)
    model = model.double().to_empty(device="cpu").eval()
    init_weights(model, seed=0)
    with torch.no_grad():
        model.head.linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def images(*sides: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(3, 2, *sides, generator=generator, dtype=torch.float64)


def test_tokens_are_the_places_of_the_feature_map() -> None:
    model = little()
    x = images(24, 40)
    features = model.trunk(x)  # type: ignore[misc]
    assert features.shape == (3, 512, 3, 5)
    embedded = torch.einsum("bchw,dc->bhwd", features, model.patch_embed.weight[:, :, 0, 0])
    expected = (embedded + model.patch_embed.bias).flatten(1, 2) + model.positions((3, 5))[0, 1:]
    torch.testing.assert_close(model.tokens(x)[:, 1:], expected, atol=1e-12, rtol=0)


def test_sizes_that_halvings_round_up() -> None:
    model = little()
    assert model.config.stride == 8
    assert model.forward_features(images(23, 33)).shape == (3, 3 * 5 + 1, 10)
    assert model(images(1, 1)).shape == (3, 7)
    wide = little(patch_size=2, image_size=(32, 48))
    assert wide(images(32, 48)).shape == (3, 7)
    with pytest.raises(ConfigError, match="24x40, 3x5 after the convolutions, does not divide"):
        wide(images(24, 40))


def test_every_parameter_learns() -> None:
    model = little()
    for unit in model.trunk.units():  # type: ignore[union-attr]
        torch.nn.init.ones_(unit.norm3.weight)  # 0 at first: what is before it would not learn yet
    model(images(24, 40)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_one_column_in_bfloat16_reads_no_other_memory() -> None:
    config = TrunkConfig()
    layer = StdConv(config, 128, 128, 3, stride=2)
    exact = torch.randn(5, 128, 3, 2, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = layer(exact)
        for _ in range(5):
            junk = [torch.full((1000 * size,), torch.nan) for size in range(1, 60)]
            del junk  # memory with NaNs is free again, and the kernel gets it
            with torch.autocast("cpu", torch.bfloat16):
                found = layer(exact).float()
            # 1,152 products of bfloat16, each right to 0.4 %
            torch.testing.assert_close(
                found, expected, rtol=0.05, atol=0.05 * expected.std().item()
            )
