from __future__ import annotations

from itertools import product
from typing import Any

import plain_resnet
import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from patchwords.models.init import init_weights
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig, TrunkConfig
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.resnet.trunk import Trunk

FORMS = ("post", "pre")
STANDARDISE = ("std+1e-5", "var+1e-8", "var+1e-10")
PADDINGS = ("same", "symmetric")
POOL_PADDINGS = ("lowest", "zeros")


def random_trunk(config: TrunkConfig, channels: int = 2) -> Trunk:
    """In float64, every parameter from a normal, so that nothing can cancel."""
    with torch.device("meta"):
        trunk = Trunk(config, channels, (29, 34))
    trunk = trunk.double().to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trunk.parameters():
            parameter.normal_(0.1, 0.5, generator=generator)
    return trunk


def random_images(*sides: int, channels: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(2, channels, *sides, generator=generator, dtype=torch.float64)


def assert_is_the_formula(config: TrunkConfig, *sides: int) -> None:
    trunk, images = random_trunk(config), random_images(*sides)
    with torch.no_grad():
        found = trunk(images)
    expected = plain_resnet.trunk(images.numpy(), plain_resnet.weights_of(trunk), config)
    assert found.shape[2:] == config.grid((sides[0], sides[1]))
    # float64: norms keep values at size 1 and sums have 2,304 products at most.
    assert abs(found.numpy() - expected).max() < 1e-9


# One stage without and one with a stride; a unit with a shortcut and one without.
@pytest.mark.parametrize("sides", [(29, 34), (32, 17)])
@pytest.mark.parametrize("setting", list(product(FORMS, PADDINGS, POOL_PADDINGS)))
def test_trunk_is_the_official_formula(
    setting: tuple[Any, Any, Any], sides: tuple[int, int]
) -> None:
    form, padding, pool_padding = setting
    for standardise in STANDARDISE if sides == (29, 34) else STANDARDISE[:1]:
        config = TrunkConfig(
            units=(1, 2),
            form=form,
            padding=padding,
            pool_padding=pool_padding,
            standardise=standardise,
            group_norm_eps=1e-3,  # large enough to be seen
        )
        assert_is_the_formula(config, *sides)


@pytest.mark.parametrize("base", [HYBRID_TRUNK, BIT_TRUNK], ids=["official", "bit"])
@pytest.mark.parametrize("sides", [(1, 1), (1, 9), (6, 2)])
def test_images_from_one_pixel_up(base: TrunkConfig, sides: tuple[int, int]) -> None:
    assert_is_the_formula(TrunkConfig(**{**vars(base), "units": (1, 1)}), *sides)


@pytest.mark.parametrize("base", [HYBRID_TRUNK, BIT_TRUNK], ids=["official", "bit"])
def test_the_root_alone(base: TrunkConfig) -> None:
    config = TrunkConfig(**{**vars(base), "units": ()})
    assert_is_the_formula(config, 29, 34)
    names = dict(random_trunk(config).named_parameters())
    assert list(names) == (
        ["root.conv.weight", "root.norm.weight", "root.norm.bias"]
        if config.form == "post"
        else ["root.conv.weight"]
    )


def test_width_factor_multiplies_every_width() -> None:
    assert_is_the_formula(TrunkConfig(units=(1,), width_factor=2), 13, 10)
    config = TrunkConfig(units=(1, 1), width_factor=3)
    with torch.device("meta"):
        trunk = Trunk(config, 3, (32, 32))
        assert trunk(torch.empty(1, 3, 32, 32)).shape[1] == config.channels == 1536


@pytest.mark.parametrize("sides", [(29, 34), (30, 33)])
def test_every_padding_is_another_model(sides: tuple[int, int]) -> None:
    # With norm and ReLU before the pooling its border never wins: only BiT tells zeros from lowest.
    images = random_images(*sides)
    found = [
        random_trunk(TrunkConfig((), form="pre", padding=padding, pool_padding=pool))(images)
        for padding, pool in product(PADDINGS, POOL_PADDINGS)  # type: ignore[arg-type]
    ]
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize("spatial", ["convolution", "axial"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_grid_is_that_of_the_config(padding: Any, spatial: Any) -> None:
    config = TrunkConfig((1, 1, 1, 1), padding=padding, spatial=spatial)
    with torch.device("meta"):
        trunk = Trunk(config, 3, (64, 64))
        for sides in [(1, 1), (2, 33), (31, 32), (36, 35), (63, 65), (97, 100), (224, 128)]:
            assert trunk(torch.empty(1, 3, *sides)).shape[2:] == config.grid(sides)


def test_names_of_parameters() -> None:
    post = dict(random_trunk(TrunkConfig((1, 2))).named_parameters())
    unit = {
        *(f"conv{i}.weight" for i in (1, 2, 3)),
        *(f"norm{i}.{kind}" for i in (1, 2, 3) for kind in ("weight", "bias")),
    }
    ends = {"shortcut.weight", "shortcut_norm.weight", "shortcut_norm.bias"}
    assert names_under(post, "stages.1.0.") == unit | ends
    assert names_under(post, "stages.1.1.") == unit
    pre = dict(random_trunk(TrunkConfig((1, 2), form="pre")).named_parameters())
    assert names_under(pre, "stages.1.0.") == unit | {"shortcut.weight"}
    assert pre["stages.1.0.norm1.weight"].shape == (256,)
    assert pre["stages.1.0.norm3.weight"].shape == (128,)
    assert post["stages.1.0.norm1.weight"].shape == (128,)
    assert post["stages.1.0.norm3.weight"].shape == (512,)


def names_under(parameters: dict[str, nn.Parameter], prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in parameters if name.startswith(prefix)}


# ---- initial weights ----


def fresh(trunk: TrunkConfig) -> ResNet:
    model = ResNet(ResNetConfig(trunk, channels=2, num_classes=7))
    init_weights(model, seed=5)
    return model.double()


@pytest.mark.parametrize("spatial", ["convolution", "axial"])
def test_a_fresh_unit_with_a_norm_at_its_end_is_its_shortcut(spatial: Any) -> None:
    model = fresh(TrunkConfig((2, 2), spatial=spatial))
    x = model.trunk.root(random_images(29, 34))
    shortcuts = 0
    for unit in model.trunk.units():
        expected = x
        if unit.shortcut is not None:
            expected = unit.shortcut_norm(unit.shortcut(x))
            shortcuts += 1
        assert torch.equal(unit(x), relu(expected))
        x = unit(x)
    assert shortcuts == 2


def test_fresh_weights_are_flax_defaults() -> None:
    post, pre = fresh(TrunkConfig((1,))), fresh(TrunkConfig((1,), form="pre"))
    for model, at_the_end in ((post, 0.0), (pre, 1.0)):
        named = dict(model.named_parameters())
        for name, parameter in named.items():
            if "norm" in name:
                last = name.endswith("norm3.weight")
                value = at_the_end if last else float(name.endswith("weight"))
                assert parameter.eq(value).all(), name
        assert named["head.linear.weight"].eq(0).all()
        kernel = named["trunk.stages.0.0.conv2.weight"]  # [64, 64, 3, 3]: 36,864 samples, 1 %
        assert kernel.std().item() == pytest.approx((64 * 9) ** -0.5, rel=0.02)
        root = named["trunk.root.conv.weight"]  # 6,272 samples
        assert root.std().item() == pytest.approx((2 * 49) ** -0.5, rel=0.05)


def test_fresh_axial_weights_are_those_of_axial_deeplab() -> None:
    named = dict(fresh(TrunkConfig((1,), spatial="axial")).named_parameters())
    unit = "trunk.stages.0.0."
    for axis in ("columns", "rows"):
        table = named[f"{unit}{axis}.relative"]  # 111 offsets of 2 x 8 numbers: known to 2 %
        assert table.shape == (111, 16)
        assert table.std().item() == pytest.approx(8**-0.5, rel=0.08)
        assert named[f"{unit}{axis}.qkv.weight"].std().item() == pytest.approx(1 / 8, rel=0.04)
        assert named[f"{unit}{axis}.qkv.bias"].eq(0).all()
