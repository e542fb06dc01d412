"""Hybrids, ResNets and every mixer: fitted to other classes and image sizes, saved and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drawn import drawn
from patchwords.errors import ConfigError
from patchwords.models.build import ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig
from patchwords.weights.adapt import adapt_model
from patchwords.weights.store import from_pretrained, save_pretrained

VIT = ViTConfig(
    patch_size=4, width=12, depth=2, heads=2, mlp_width=23, image_size=(12, 20), num_classes=7
)
AXIAL = replace(HYBRID_TRUNK, units=(1, 1), spatial="axial")
GRID = r"positions resized from 3x5 to 5x3 patches (bilinear-corners)"
LINES = "relative positions of the ResNet resized from images of 12x20 to 20x12 (linear)"
KINDS: dict[str, tuple[ModelConfig, list[str]]] = {  # what resizing to 20x12 says
    "2d at every block": (VIT.with_settings(position="2d", position_at="every"), [GRID]),
    "relative": (VIT.with_settings(position="relative"), [GRID]),
    "sincos2d": (VIT.with_settings(position="sincos2d"), []),
    "axial, relative": (VIT.with_settings(mixer="axial", position="relative"), [GRID]),
    "local, relative": (VIT.with_settings(mixer="local", window=3, position="relative"), []),
    "pooling": (VIT.with_settings(mixer="pooling", position="2d"), [GRID]),
    "identity": (VIT.with_settings(mixer="identity"), [GRID]),
    "hybrid": (
        VIT.with_settings(trunk=replace(HYBRID_TRUNK, units=(1,)), patch_size=1),
        [GRID],
    ),
    "hybrid, axial": (
        VIT.with_settings(trunk=replace(AXIAL, units=(1,)), patch_size=1),
        [LINES, GRID],
    ),
    "BiT": (ResNetConfig(replace(BIT_TRUNK, units=(1, 1)), (12, 20), num_classes=7), []),
    "AxialResNet": (ResNetConfig(AXIAL, (12, 20), num_classes=7), [LINES]),
}
TOKEN_MLP = VIT.with_settings(mixer="mlp")


def pixels(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_another_size_is_as_the_model_itself_would_have_it(kind: str) -> None:
    config, said = KINDS[kind]
    model = drawn(build_model(config))
    new, changes = adapt_model(model, image_size=(20, 12))
    assert changes == said
    assert new.config == config.with_settings(image_size=(20, 12))
    # The same tables, of which a copy may lie otherwise in memory: sums in another order.
    torch.testing.assert_close(new(pixels(20, 12)), model(pixels(20, 12)), atol=1e-5, rtol=1e-5)
    assert all(value.is_contiguous() for value in new.state_dict().values())


def test_a_token_mlp_cannot_be_resized() -> None:
    with pytest.raises(ConfigError, match="mixer 'mlp' has weights for 3x5 patches and cannot"):
        adapt_model(drawn(build_model(TOKEN_MLP)), image_size=(20, 12))


@pytest.mark.parametrize("kind", KINDS)
def test_another_task_gets_a_head_of_zeros_and_keeps_the_rest(kind: str) -> None:
    model = drawn(build_model(KINDS[kind][0]))
    new, changes = adapt_model(model, num_classes=3)
    assert len(changes) == 1
    assert torch.equal(new(pixels(12, 20)), torch.zeros(2, 3))
    before = model.state_dict()
    for name, value in new.state_dict().items():
        assert name.startswith("head.linear.") or torch.equal(value, before[name]), name
    rows, _ = adapt_model(model, head_rows=[5, 0])
    torch.testing.assert_close(  # a product with a matrix of other size; float32
        rows(pixels(12, 20)), model(pixels(12, 20))[:, [5, 0]], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["hybrid", "BiT"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("form", "neither"),
        ("units", (2,)),
        ("width_factor", 2),
        ("standardise", "var+1e-8"),
        ("group_norm_eps", 1e-3),
        ("trunk", BIT_TRUNK),
    ],
)
def test_the_weights_fix_all_of_a_trunk(kind: str, name: str, value: object) -> None:
    model = drawn(build_model(KINDS[kind][0]))
    with pytest.raises(ConfigError, match=f"^{name} .* was asked for, but the weights are of a"):
        adapt_model(model, **{name: value})


def test_a_resnet_has_no_place_for_what_a_vit_has() -> None:
    for name in ("dropout", "depth", "classifier", "position", "patch_size"):
        with pytest.raises(ConfigError, match=f"^a ResNet has no setting {name!r}"):
            adapt_model(drawn(build_model(KINDS["BiT"][0])), **{name: 1})


@pytest.mark.parametrize("kind", [*KINDS, "token MLP"])
def test_round_trip_is_bit_equal(tmp_path: Path, kind: str) -> None:
    model = drawn(build_model(TOKEN_MLP if kind == "token MLP" else KINDS[kind][0]))
    found = from_pretrained(save_pretrained(model, tmp_path)).model
    assert found.config == model.config
    expected = model.state_dict()
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(v, expected[k]) for k, v in found.state_dict().items())
    assert torch.equal(found(pixels(12, 20)), model(pixels(12, 20)))
