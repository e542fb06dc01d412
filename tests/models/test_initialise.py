from __future__ import annotations

import math

import pytest
import torch

from patchwords.models.init import init_weights
from patchwords.models.zoo import create_model


def parameters_of(**settings: object) -> dict[str, torch.Tensor]:
    settings = {"num_classes": 7, "image_size": 32} | settings
    model = create_model("Ti/4", **settings)  # type: ignore[arg-type]
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_statistics_are_the_official_ones() -> None:
    found = parameters_of(representation_size=191, head_bias=-10.0)
    # Samples are 9,000 and more: their standard deviation is known to 1 %, 5 % is never met.
    assert found["positions.table"].std().item() == pytest.approx(0.02, rel=0.05)
    patch = found["embed.weight"]  # fan_in = 3 * 4 * 4, cut at two (uncorrected) deviations
    assert patch.std().item() == pytest.approx(48**-0.5, rel=0.05)
    assert 0.95 < patch.abs().max().item() / (2 * 48**-0.5 / 0.87962566) <= 1
    tanh = found["head.representation.weight"]
    assert tanh.std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert tanh.abs().max().item() <= 2 * 192**-0.5 / 0.87962566
    # 1e-6 from Flax's Dense in MlpBlock
    assert found["encoder.blocks.3.mlp.fc1.bias"].std().item() == pytest.approx(1e-6, rel=0.2)
    assert found["head.linear.bias"].eq(-10).all()
    for zero in (
        "class_token",
        "embed.bias",
        "encoder.blocks.0.attention.qkv.bias",
        "encoder.blocks.0.attention.out.bias",
        "encoder.norm.bias",
        "head.linear.weight",
        "head.representation.bias",
    ):
        assert found[zero].eq(0).all(), zero
    assert found["encoder.blocks.11.norm2.weight"].eq(1).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"position": "2d", "position_at": "every"},
        {"position": "relative"},
        {"position": "relative", "mixer": "axial"},
        {"position": "relative", "mixer": "local"},
        {"mixer": "mlp"},
    ],
    ids=str,
)
def test_positions_of_every_kind_and_the_token_mlp(settings: dict[str, object]) -> None:
    """Each parameter has a rule; tables of positions are all as the first kind's."""
    found = parameters_of(**settings)
    tables = {
        name: values
        for name, values in found.items()
        if name.startswith("positions.") or ".relative." in name
    }
    for name, values in tables.items():
        # The smallest have 192 values: 0.02 to within five of their standard deviations, 25 %.
        assert values.std().item() == pytest.approx(0.02, rel=0.25), name
    if "mlp" in settings.values():
        kernel = found["encoder.blocks.3.attention.fc1.weight"]
        assert kernel.shape == (96, 64)
        assert 0.95 < kernel.abs().max().item() / math.sqrt(6 / (96 + 64)) <= 1
        bias = found["encoder.blocks.3.attention.fc2.bias"]
        assert bias.abs().max().item() < 1e-5
    else:
        assert tables


@pytest.mark.parametrize(
    ("name", "fans"),
    [
        ("encoder.blocks.2.attention.qkv.weight", 2 * 192),  # q, k, v apart, not one [3D, D]
        ("encoder.blocks.2.attention.out.weight", 2 * 192),
        ("encoder.blocks.2.mlp.fc1.weight", 192 + 768),
        ("encoder.blocks.2.mlp.fc2.weight", 192 + 768),
        ("head.pool.attention.query.weight", 2 * 192),
        ("head.pool.attention.key_value.weight", 2 * 192),
        ("head.pool.mlp.fc1.weight", 192 + 768),
        ("head.pool.probe", 1 + 192),
    ],
)
def test_xavier_bounds(name: str, fans: int) -> None:
    values = parameters_of(classifier="map")[name]
    bound = math.sqrt(6 / fans)
    assert values.abs().max().item() <= bound
    assert values.abs().max().item() > 0.95 * bound
    assert values.mean().abs().item() < 0.15 * bound  # the probe has 192 values only


def test_a_parameter_depends_on_the_seed_and_its_name_only() -> None:
    first = parameters_of(seed=3)
    torch.manual_seed(99)  # the global generator has no part in it
    again = parameters_of(seed=3)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = parameters_of(seed=4)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])

    changed = parameters_of(seed=3, num_classes=11, representation_size=13, depth=13)
    shared = set(first) - {"head.linear.weight", "head.linear.bias"}
    assert len(shared) == 2 + 2 + 12 * 12 + 2
    assert all(torch.equal(first[name], changed[name]) for name in shared)


def test_creating_a_model_draws_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    create_model("mu/16").reset_head(5)
    assert torch.equal(before, torch.get_rng_state())


def test_a_parameter_without_a_rule_is_an_error() -> None:
    model = create_model("mu/16")
    model.register_parameter("gate", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(LookupError, match="0 rules initialise the parameter 'gate'"):
        init_weights(model, seed=0)


def test_the_same_weights_in_every_precision() -> None:
    double = create_model("mu/16").double()
    init_weights(double, seed=0)
    for one, two in zip(double.parameters(), create_model("mu/16").parameters(), strict=True):
        assert torch.equal(one.float(), two)
