"""A model fitted to other classes and another image size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.models.position import resize_positions
from patchwords.models.resnet.config import ResNetConfig, TrunkConfig
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT
from patchwords.weights.adapt import adapt_model

Build = Callable[..., ViT]


def same_but(a: ViT, b: ViT, *prefixes: str) -> bool:
    ours = {k: v for k, v in a.state_dict().items() if not k.startswith(prefixes or "-")}
    theirs = {k: v for k, v in b.state_dict().items() if not k.startswith(prefixes or "-")}
    return ours.keys() == theirs.keys() and all(torch.equal(v, theirs[k]) for k, v in ours.items())


def test_nothing_asked_is_a_copy_of_its_own(tiny: Build, images: torch.Tensor) -> None:
    model = tiny()
    copy, changes = adapt_model(model)
    assert changes == []
    assert torch.equal(copy(images), model(images))
    with torch.no_grad():
        copy.head.linear.weight.zero_()
        copy.patch_embed.weight.zero_()
    assert model.head.linear.weight.abs().min() > 0
    assert model.patch_embed.weight.abs().max() > 0


@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_a_new_head_is_zero_and_the_tanh_layer_goes(
    tiny: Build, images: torch.Tensor, classifier: str
) -> None:
    model = tiny(representation_size=11, classifier=classifier, head_bias=-4.0)
    new, changes = adapt_model(model, num_classes=3)
    assert torch.equal(new(images), torch.zeros(3, 3))
    assert new.head.representation is None
    assert new.config.representation_size is None
    assert (new.config.num_classes, new.config.head_bias) == (3, 0.0)
    assert same_but(new, model, "head.linear", "head.representation")  # head.pool is kept
    assert changes == [
        "the head is new, for 3 classes in place of 7: it starts from zero (Sec. 3.2); the tanh "
        "layer of 11 before it is left out, too"
    ]
    assert all(p.requires_grad for p in new.parameters())


def test_a_head_for_none_and_in_place_of_none(tiny: Build, images: torch.Tensor) -> None:
    """A single class is that of pre-training without classes."""
    encoder, changes = adapt_model(tiny(), num_classes=1)
    assert changes == ["the head is left out, as there are no classes to train it for"]
    assert torch.equal(encoder(images), torch.zeros(3, 1))
    new, changes = adapt_model(encoder, num_classes=5)
    assert changes == [
        "the head is new, for 5 classes in place of none: it starts from zero (Sec. 3.2)"
    ]
    assert same_but(new, encoder, "head.linear")


def test_a_new_head_may_have_a_bias(tiny: Build, images: torch.Tensor) -> None:
    new, changes = adapt_model(tiny(), num_classes=5, head_bias=-1.5)
    assert torch.equal(new(images), torch.full((3, 5), -1.5))
    assert changes[0].endswith("it starts from zero (Sec. 3.2), with a bias of -1.5")


def test_a_head_is_new_even_where_the_number_is_the_same(tiny: Build) -> None:
    new, changes = adapt_model(tiny(), num_classes=7)
    assert new.head.linear.weight.abs().max() == 0
    assert len(changes) == 1


@pytest.mark.parametrize("representation", [None, 11])
def test_head_rows_are_taken_in_the_order_of_the_names(
    tiny: Build, images: torch.Tensor, representation: int | None
) -> None:
    model, rows = tiny(representation_size=representation), [6, 0, 3]
    new, changes = adapt_model(model, head_rows=rows)
    # The same products, in a matrix of other size; float32.
    torch.testing.assert_close(new(images), model(images)[:, rows], atol=1e-5, rtol=1e-5)
    assert changes == ["the head is kept: the weights know the classes of the data"]
    assert new.config.num_classes == 3
    assert same_but(new, model, "head.linear")


@pytest.mark.parametrize("size", [(12, 20), (24, 8), (4, 4)])
@pytest.mark.parametrize("method", ["bilinear-corners", "bicubic-antialias"])
def test_positions_are_resized_once_as_the_model_would_at_every_call(
    tiny: Build, size: tuple[int, int], method: str
) -> None:
    model = tiny(resize=method)
    pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(2))
    new, changes = adapt_model(model, image_size=size)
    assert torch.equal(new(pixels), model(pixels))
    assert new.config.image_size == size
    assert same_but(new, model, "positions")
    rows, columns = size[0] // 4, size[1] // 4
    if size == (12, 20):
        assert changes == []
        assert torch.equal(new.positions.table, model.positions.table)
    else:
        assert changes == [f"positions resized from 3x5 to {rows}x{columns} patches ({method})"]
        table = resize_positions(model.positions.table, (3, 5), (rows, columns), 1, method)
        assert torch.equal(new.positions.table, table)


def test_without_positions_there_is_nothing_to_resize(tiny: Build) -> None:
    new, changes = adapt_model(tiny(position="none"), image_size=(4, 8))
    assert changes == []
    assert new.config.image_size == (4, 8)


def test_free_settings_change_and_fixed_ones_are_refused(tiny: Build) -> None:
    model = tiny()
    new, changes = adapt_model(model, dropout=0.3, drop_path=0.2, gelu="erf", classifier="token")
    assert (new.config.dropout, new.config.gelu, changes) == (0.3, "erf", [])
    assert new.encoder.blocks[1].drop_path.rate == 0.2
    other: dict[str, Any] = {
        "width": 12,
        "depth": 3,
        "heads": 5,
        "mlp_width": 24,
        "channels": 1,
        "mixer": "axial",
        "window": 3,
        "position": "none",
        "position_at": "every",
    }
    for name, value in other.items():
        with pytest.raises(ConfigError, match=f"^{name} {value!r} was asked for, but the weights"):
            adapt_model(model, **{name: value})
    with pytest.raises(ConfigError, match="did you mean 'dropout'"):
        adapt_model(model, dropuot=0.3)


@pytest.mark.parametrize("size", [2, 6, 8])
def test_another_patch_size_resizes_kernel_and_positions(tiny: Build, size: int) -> None:
    """Patches of 4 on 12 x 20 pixels; larger ones see a larger photo as the old ones saw it."""
    model = tiny().double()
    pixels = (12, 20) if size == 2 else (3 * size, 5 * size)
    new, changes = adapt_model(model, patch_size=size, image_size=pixels)
    assert (new.config.patch_size, new.config.image_size) == (size, pixels)
    assert "pseudo-inverse" in changes[0]
    patches = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    larger = torch.nn.functional.interpolate(patches, size=(size, size), mode="bilinear")
    with torch.no_grad():
        found, wanted = new.patch_embed(larger), model.patch_embed(patches)
    assert new(torch.randn(2, 3, *pixels, dtype=torch.float64)).shape == (2, 7)
    if size > 4:
        assert (found - wanted).abs().max() < 1e-9
        assert torch.equal(new.positions.table, model.positions.table)
    else:
        assert any("positions resized from 3x5 to 6x10" in change for change in changes)
        kernel = model.patch_embed.weight
        constant = torch.ones(1, 3, 4, 4, dtype=torch.float64)
        assert new.patch_embed.weight.shape == (*kernel.shape[:2], 2, 2)
        sums = new.patch_embed(constant[:, :, :2, :2]), model.patch_embed(constant)
        assert (sums[0] - sums[1]).abs().max() < 1e-6  # a plain patch is seen as before


def test_patches_of_other_models_are_refused(tiny: Build) -> None:
    with pytest.raises(ConfigError, match="does not divide into patches of 7"):
        adapt_model(tiny(), patch_size=7)
    trunk = TrunkConfig(units=(1,))
    hybrid = tiny(patch_size=1, trunk=trunk, image_size=(32, 32))
    with pytest.raises(ConfigError, match="the weights are of a hybrid"):
        adapt_model(hybrid, patch_size=2)
    bit = ResNet(ResNetConfig(trunk, (32, 32), num_classes=3))
    with pytest.raises(ConfigError, match="patch_size"):
        adapt_model(bit, patch_size=2)
