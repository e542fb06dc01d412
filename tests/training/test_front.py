"""A model cut in two gives what it gives as a whole."""

from __future__ import annotations

import pytest
import torch
from every_kind import EVERY_KIND, VIT, lively

from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.errors import ConfigError
from patchwords.models.build import Model
from patchwords.models.vit import ViT
from patchwords.training.engine.optimizer import freeze_layers
from patchwords.training.inputs.frozen import FrozenBackbone, build_frozen_backbone

KINDS = pytest.mark.parametrize("kind", EVERY_KIND)
IMAGES = torch.randn(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def model_of(kind: str) -> Model:
    return lively(EVERY_KIND[kind]).eval()


@KINDS
def test_every_cut_gives_the_same_bits(kind: str) -> None:
    model = model_of(kind)
    whole = model(IMAGES)
    count = model.config.layers
    for layer in range(count):
        assert torch.equal(model.forward_from(model.forward_until(IMAGES, layer), layer), whole)
    # The last block gives all tokens here, where the whole computes those that are read.
    end = model.forward_from(model.forward_until(IMAGES, count), count)
    torch.testing.assert_close(end, whole, rtol=1e-5, atol=1e-5)


@KINDS
@pytest.mark.parametrize("train", ["head", "last:1", "last:2"])
def test_the_rest_is_what_learns(kind: str, train: str) -> None:
    """What is frozen shapes the activations alone; but for positions that every layer adds."""
    model = model_of(kind)
    freeze_layers(model, train, model.config)
    front = build_frozen_backbone(model, train)
    assert front is not None
    activations = front.activations(IMAGES)
    assert not activations.requires_grad
    assert torch.equal(front.rest(activations), model(IMAGES))
    parameters = {k: v for k, v in model.named_parameters() if not k.startswith("positions.")}
    frozen = [parameter for parameter in parameters.values() if not parameter.requires_grad]
    before = front.rest(activations)
    with torch.no_grad():
        for parameter in frozen:
            parameter.fill_(torch.nan)
    assert torch.equal(front.rest(activations), before)


def test_everything_that_learns_has_no_front() -> None:
    assert build_frozen_backbone(model_of("axial"), "all") is None


def test_a_head_alone_is_given_what_it_pools() -> None:
    """197 tokens would take 197 times the space; a pooling that learns needs them all."""
    shapes = {
        kind: tuple(FrozenBackbone(model, model.config.layers).activations(IMAGES).shape)
        for kind in ("relative", "1d shared", "sincos2d and map", "BiT")
        if (model := model_of(kind))
    }
    channels = model_of("BiT").config.trunk.channels  # type: ignore[union-attr]
    assert shapes == {
        "relative": (5, 16),
        "1d shared": (5, 16),
        "sincos2d and map": (5, 9, 16),
        "BiT": (5, channels),
    }


def test_another_grid_is_told() -> None:
    model = model_of("2d at every block")
    assert isinstance(model, ViT)
    images = torch.randn(2, 3, 8, 20, generator=torch.Generator().manual_seed(1))
    tokens = model.forward_until(images, 1)
    assert torch.equal(model.forward_from(tokens, 1, grid=(2, 5)), model(images))


@pytest.mark.parametrize("kind", ["axial", "BiT"])
@pytest.mark.parametrize("layer", [-1, 3, 5])
def test_a_layer_that_is_not_there_is_refused(kind: str, layer: int) -> None:
    model = model_of(kind)
    count = model.config.layers
    layer = layer if layer < 0 else count + 1
    with pytest.raises(ConfigError, match=f"layer {layer} cannot be entered: give 0 to {count}"):
        model.forward_until(IMAGES, layer)
    with pytest.raises(ConfigError, match="cannot be entered"):
        model.forward_from(IMAGES, layer)


@pytest.mark.parametrize(
    ("dropout", "drop_path", "first", "draws"),
    [
        (0.0, 0.0, 2, False),
        (0.1, 0.0, 0, True),  # after positions are added
        (0.0, 0.2, 1, False),  # stochastic depth is 0 at the first layer
        (0.0, 0.2, 2, True),
    ],
)
def test_whether_frozen_layers_draw(
    dropout: float, drop_path: float, first: int, draws: bool
) -> None:
    model = lively(VIT.with_settings(dropout=dropout, drop_path=drop_path)).train()
    front = FrozenBackbone(model, first)
    assert front.draws == draws
    torch.manual_seed(0)
    one = front.activations(IMAGES)
    assert torch.equal(one, front.activations(IMAGES)) != draws


def test_the_activations_of_one_image_have_the_type_of_the_precision() -> None:
    model = lively(VIT.with_settings(position="none", classifier="gap"))
    preprocess = Preprocess(image_size=(12, 12))
    for bf16, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        one = FrozenBackbone(model, 0).of_one(preprocess, Device(torch.device("cpu"), bf16))
        assert (one.shape, one.dtype, one.requires_grad) == ((1, 9, 16), dtype, False)
