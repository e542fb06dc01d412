from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks import peers
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.models.init import init_weights
from patchwords.models.resnet.config import BIT_TRUNK, ResNetConfig, TrunkConfig
from patchwords.models.resnet.resnet import ResNet

transformers = peers.load("transformers")


def tiny(**settings: Any) -> ResNet:
    """Two stages in float64, every parameter drawn from a normal."""
    config = ResNetConfig(channels=2, num_classes=7).with_settings(**{"units": (1, 2)} | settings)
    model = ResNet(config).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.5, generator=generator)
    return model


@pytest.fixture
def pictures() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 2, 29, 34, generator=generator, dtype=torch.float64)


# ---- against an independent implementation ----

OURS_TO_BIT = [
    ("trunk.root.conv", "embedder.convolution"),
    ("trunk.root.norm", "embedder.norm"),
    ("trunk.stages", "encoder.stages"),
    (".shortcut_norm.", ".downsample.norm."),
    (".shortcut.", ".downsample.conv."),
]


def bit_name(name: str) -> str:
    for ours, theirs in OURS_TO_BIT:
        name = name.replace(ours, theirs)
    parts = name.split(".")
    if parts[:2] == ["encoder", "stages"]:
        parts.insert(3, "layers")
    return ".".join(parts)


@pytest.mark.parametrize("sides", [(29, 34), (64, 33)])
@pytest.mark.parametrize(
    ("form", "padding"), [("pre", "symmetric"), ("pre", "same"), ("post", "same")]
)
def test_agrees_with_transformers(form: Any, padding: Any, sides: tuple[int, int]) -> None:
    same = padding == "same"
    theirs = transformers.BitModel(
        transformers.BitConfig(
            num_channels=2,
            embedding_size=64,
            hidden_sizes=[256, 512],
            depths=[1, 2],
            layer_type="preactivation" if form == "pre" else "bottleneck",
            global_padding="same" if same else None,
            embedding_dynamic_padding=same,
        )
    )
    theirs = theirs.double().eval()
    ours = tiny(
        form=form,
        padding=padding,
        pool_padding="zeros",
        standardise="var+1e-8",
        group_norm_eps=1e-5,
    )
    weights = {bit_name(name): value for name, value in ours.state_dict().items()}
    theirs.load_state_dict({name: w for name, w in weights.items() if "head" not in name})
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(2, 2, *sides, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs(images)
        features = ours.forward_features(images)
        pooled = ours.forward_head(features, pre_logits=True)
    # float64, sums of 2,304 products at most; norms keep values at size 1.
    torch.testing.assert_close(features, expected.last_hidden_state, atol=1e-9, rtol=0)
    torch.testing.assert_close(pooled, expected.pooler_output[..., 0, 0], atol=1e-9, rtol=0)


# ---- the interface ----


@pytest.mark.parametrize("form", ["pre", "post"])
def test_features_and_head_make_the_whole(pictures: Tensor, form: Any) -> None:
    model = tiny(form=form)
    features = model.forward_features(pictures)
    assert features.shape == (3, 512, *model.config.trunk.grid((29, 34)))
    assert features.min() == 0  # both forms end in a ReLU
    before = model.forward_head(features, pre_logits=True)
    torch.testing.assert_close(before, features.flatten(2).mean(2), atol=1e-12, rtol=0)
    expected = before @ model.head.linear.weight.mT + model.head.linear.bias
    torch.testing.assert_close(model(pictures), expected, atol=1e-9, rtol=0)


def test_the_norm_before_the_head_is_of_the_pre_form_only() -> None:
    assert tiny(form="post").norm is None
    assert tiny(form="pre", group_norm_eps=0.25).norm.eps == 0.25  # type: ignore[union-attr]


@pytest.mark.parametrize("sides", [(1, 1), (2, 31), (64, 64)])
def test_any_size(sides: tuple[int, int]) -> None:
    model = tiny()
    images = torch.zeros(2, 2, *sides, dtype=torch.float64)
    assert model(images).shape == (2, 7)
    assert model.forward_features(images).shape[2:] == model.config.trunk.grid(sides)


def test_intermediates_are_units_and_no_more_is_computed(pictures: Tensor) -> None:
    model = tiny()
    found = model.forward_intermediates(pictures, [-1, 0])
    assert list(found) == [-1, 0]
    assert torch.equal(model.norm(found[-1]).relu(), model.forward_features(pictures))  # type: ignore[misc]
    assert torch.equal(found[0], model.trunk.stages[0][0](model.trunk.root(pictures)))  # type: ignore[index]
    every = model.forward_intermediates(pictures)
    assert {layer: x.shape[1:] for layer, x in every.items()} == {
        0: (256, 8, 9),
        1: (512, 4, 5),
        2: (512, 4, 5),
    }
    assert model.forward_intermediates(pictures, []) == {}
    model.trunk.stages[1][1] = torch.nn.Linear(1, 1)  # type: ignore[index,operator]  # would raise
    assert torch.equal(model.forward_intermediates(pictures, [1])[1], every[1])
    with pytest.raises(ConfigError, match="layer 3 does not exist: this model has 3, 0 to 2"):
        model.forward_intermediates(pictures, [3])


def test_what_it_cannot_do_it_says(pictures: Tensor) -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="a ResNet has no attention"):
        model.attention(pictures)
    for call in (model, model.forward_features, model.forward_intermediates):
        with pytest.raises(ConfigError, match="the model takes 2"):
            call(pictures[:, :1])


def test_reset_head(pictures: Tensor) -> None:
    model = tiny(head_bias=-3.0)
    features = model.forward_features(pictures)
    model.reset_head(13)
    assert model(pictures).shape == (3, 13)
    assert model(pictures).eq(0).all()
    assert model.head.linear.weight.dtype == torch.float64
    assert torch.equal(model.forward_features(pictures), features)
    assert model.config == tiny(num_classes=13).config


def test_a_fresh_model_gives_the_heads_bias(pictures: Tensor) -> None:
    model = tiny(head_bias=-3.0)
    init_weights(model, seed=0)
    assert model(pictures).eq(-3).all()


@pytest.mark.parametrize("form", ["pre", "post"])
def test_gradients_reach_every_parameter(pictures: Tensor, form: Any) -> None:
    model = tiny(form=form)
    model(pictures).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_low_precision_gives_about_the_same(pictures: Tensor) -> None:
    model, images = tiny().float(), pictures.float()
    exact = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(images)
    # bfloat16 has 8 bits: a few percent of the largest logit after ten layers.
    assert (found.float() - exact).abs().max() < 0.05 * exact.abs().max()
    assert model.bfloat16()(images.bfloat16()).isfinite().all()


# ---- published counts ----

R50, R101, R152, R200 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3), (3, 24, 36, 3)


@pytest.mark.parametrize(
    ("units", "width_factor", "millions"),
    [
        (R50, 1, "25.55"),
        (R50, 2, "97.99"),
        (R50, 3, "217.3"),
        (R101, 1, "44.54"),
        (R101, 3, "387.9"),
        (R152, 1, "60.19"),
        (R152, 2, "236.34"),
        (R152, 4, "936.53"),
        (R200, 3, "568.6"),
    ],
)
def test_parameters_are_those_of_bit(units: Any, width_factor: int, millions: str) -> None:
    trunk = TrunkConfig(**{**vars(BIT_TRUNK), "units": units, "width_factor": width_factor})
    with torch.device("meta"):
        model = ResNet(ResNetConfig(trunk))
    count = sum(parameter.numel() for parameter in model.parameters())
    digits = len(millions.split(".")[1])
    assert f"{count / 1e6:.{digits}f}" == millions
