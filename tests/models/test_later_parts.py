"""Parts of later models than the paper's: registers, LayerScale, norms, gates, a second token."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from drawn import drawn
from patchwords.errors import ConfigError
from patchwords.interpret.attention import attention_maps, token_similarity
from patchwords.models.config import LATER_PARTS, ViTConfig
from patchwords.models.cost import list_part_costs
from patchwords.models.cost.counting import count_model
from patchwords.models.inference.calibration import collect_activation_ranges
from patchwords.models.inference.int8 import check_int8_support, quantise_model
from patchwords.models.inference.packed import (
    PackedBlock,
    pack_for_inference,
    supports_packed_linear,
)
from patchwords.models.init import init_weights
from patchwords.models.position import resize_position_parameters
from patchwords.models.vit import ViT
from patchwords.training.engine.optimizer import find_layer_index, has_weight_decay
from patchwords.weights.adapt import adapt_model

TINY = ViTConfig(
    patch_size=4, width=16, depth=2, heads=2, mlp_width=24, image_size=(12, 20), num_classes=5
)
PARTS: dict[str, dict[str, Any]] = {
    "layer scale": {"layer_scale": 0.5},
    "registers": {"registers": 3},
    "registers, gap": {"registers": 3, "classifier": "gap"},
    "registers, map": {"registers": 2, "classifier": "map"},
    "class token, gap": {"class_token": True, "classifier": "gap"},
    "patch positions": {"class_position": False},
    "patch positions, 2d": {"class_position": False, "position": "2d", "registers": 1},
    "at every layer": {"registers": 2, "position_at": "every"},
    "sines": {"registers": 2, "position": "sincos2d"},
    "distillation": {"distillation": True},
    "pool norm": {"pool_norm": True, "classifier": "gap", "class_token": True},
    "pre-norm": {"pre_norm": True, "patch_bias": False, "gelu": "quick"},
    "qk norm": {"qk_norm": True},
    "swiglu": {"swiglu": True},
    "both poolings": {"classifier": "token+gap", "registers": 2},
}


def build(settings: dict[str, Any]) -> ViT:
    return drawn(ViT(TINY.with_settings(**settings)))


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 12, 20, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("part", PARTS)
def test_every_way_through_a_model_agrees(part: str) -> None:
    model = build(PARTS[part])
    x = images()
    with torch.no_grad():
        logits, features = model(x), model.forward_features(x)
        assert logits.shape == (2, 5)
        assert features.shape == (2, model.config.tokens, 16)
        assert torch.allclose(model.forward_head(features), logits, atol=1e-5)
        assert torch.allclose(model.forward_from(model.tokens(x), 0), logits, atol=1e-5)
        middle = model.forward_until(x, 1)
        assert torch.allclose(model.forward_from(middle, 1), logits, atol=1e-5)
        dense = model.forward_dense(x)  # [B, D, h, w]
        prefix = model.num_prefix_tokens
        assert torch.allclose(dense.flatten(2).mT, features[:, prefix:], atol=1e-5)
        assert model.represent(x).shape[1] == model.config.pooled_width
        for _, attention in model.attention(x):
            assert torch.allclose(attention.sum(-1), torch.ones(()), atol=1e-5)
        assert model(images()[:, :, :8, :16]).shape == (2, 5)  # another grid


@pytest.mark.parametrize("part", PARTS)
def test_configs_round_trip_and_count(part: str) -> None:
    config = TINY.with_settings(**PARTS[part])
    assert ViTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    count_model(config)  # raises where a parameter is in no part
    assert list_part_costs(config)
    model = ViT(config)
    init_weights(model, 0)
    logits = model.eval()(images())
    assert logits.isfinite().all()
    for name, parameter in model.named_parameters():
        assert has_weight_decay(name) == (parameter.ndim > 1 and name.endswith(".weight")), name
        find_layer_index(name, config)


def test_a_config_of_before_has_none_of_the_parts() -> None:
    old = TINY.to_dict()
    assert not old.keys() & LATER_PARTS.keys()
    config = ViTConfig.from_dict(old)
    assert config == TINY
    assert config.later_parts == ()
    assert not any("layer_scale" in name or "regist" in name for name in ViT(config).state_dict())


@pytest.mark.parametrize("part", PARTS)
def test_the_packed_model_gives_the_same(part: str) -> None:
    if not supports_packed_linear():
        pytest.skip("this build of torch is without oneDNN")
    model = build({**PARTS[part], "width": 32, "heads": 2})
    fast = pack_for_inference(model)
    plain = part in ("pre-norm", "qk norm", "swiglu")
    assert isinstance(fast.encoder.blocks[0], PackedBlock) != plain  # type: ignore[union-attr]
    with torch.no_grad():
        assert torch.allclose(fast(images()), model(images()), atol=2e-4, rtol=1e-4)


def test_int8_takes_layer_scale_and_registers_in() -> None:
    model = build({"width": 32, "layer_scale": 1.0, "registers": 2})
    try:
        check_int8_support(model)
    except ConfigError as error:
        pytest.skip(str(error))
    for name, value in model.named_parameters():
        value.data = value.data * (0.3 if "norm" not in name else 1.0)
    ranges = collect_activation_ranges(model, [images(4)])
    with torch.inference_mode():
        whole, rounded = model(images()), quantise_model(model, ranges, torch.float32)(images())
    assert (whole - rounded).abs().max() < 0.1 * whole.abs().max()


def test_layer_scale_is_a_factor_of_each_channel() -> None:
    plain, scaled = build({}), build({"layer_scale": 1.0})
    state = plain.state_dict() | {
        name: torch.ones_like(value)
        for name, value in scaled.state_dict().items()
        if "layer_scale" in name
    }
    scaled.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(scaled(images()), plain(images()))
        for name, value in scaled.named_parameters():
            if "layer_scale" in name:
                value.zero_()
        x = images()
        assert torch.equal(scaled.forward_until(x, 2), scaled.tokens(x))  # the stream alone


def test_registers_have_no_position_and_are_not_read() -> None:
    model = build({"registers": 3})
    tokens = model.tokens(images())
    assert torch.equal(tokens[:, 1:4], model.registers.expand(2, -1, -1))  # type: ignore[union-attr]
    pooled = build({"registers": 3, "classifier": "gap"})
    features = torch.randn(2, pooled.config.tokens, 16)
    other = features.clone()
    other[:, :3] += 1
    with torch.no_grad():
        assert torch.equal(pooled.forward_head(features), pooled.forward_head(other))


@pytest.mark.parametrize("part", ["registers", "patch positions", "distillation", "at every layer"])
def test_positions_are_resized_around_the_prefix(part: str) -> None:
    model = build(PARTS[part])
    new = model.config.with_settings(image_size=(20, 28))
    resized = ViT(new)
    resized.load_state_dict(resize_position_parameters(model.state_dict(), model.config, new))
    x = torch.randn(2, 3, 20, 28)
    with torch.no_grad():
        assert torch.allclose(resized.eval()(x), model(x), atol=1e-6)


def test_the_offset_of_dino_moves_positions_a_little() -> None:
    """Not at the grid of the table, and at others by less than a tenth of a patch."""
    table = torch.linspace(0, 1, 5)[None, None, :, None].expand(1, 4, 5, 2).contiguous()
    from patchwords.models.relative import resize_position_grid

    assert resize_position_grid(table, (4, 5), "bicubic-offset") is table
    moved = resize_position_grid(table, (8, 10), "bicubic-offset")
    plain = resize_position_grid(table, (8, 10), "bicubic")
    assert moved.shape == plain.shape == (1, 8, 10, 2)
    assert 1e-4 < (moved - plain).abs().max() < 0.1 / 4


def test_a_distilled_head_is_the_mean_of_two() -> None:
    model = build({"distillation": True})
    features = model.forward_features(images())
    head = model.head
    assert head.distillation is not None
    wanted = (head.linear(features[:, 0]) + head.distillation(features[:, 1])) / 2
    assert torch.allclose(model(images()), wanted, atol=1e-5)
    model.reset_head(3)
    assert model(images()).count_nonzero() == 0
    new, _ = adapt_model(build({"distillation": True}), num_classes=3)
    assert new(images()).count_nonzero() == 0
    kept, _ = adapt_model(build({"distillation": True}), head_rows=[2, 0])
    assert torch.allclose(kept(images()), build({"distillation": True})(images())[:, [2, 0]])


def test_another_pooling_on_the_same_encoder() -> None:
    model = build({"layer_scale": 0.1, "registers": 2})
    for classifier in ("gap", "map", "token+gap"):
        new, notes = adapt_model(model, num_classes=4, classifier=classifier)
        assert new(images()).shape == (2, 4)
        assert notes
    both = build({"classifier": "token+gap"})
    new, _ = adapt_model(both, classifier="token")
    assert new.head.linear.weight.shape == (5, 16)
    assert new.head.linear.weight.count_nonzero() == 0
    with pytest.raises(ConfigError, match="registers 4"):
        adapt_model(model, registers=4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"registers": -1}, "registers must be a whole number"),
        ({"swiglu": 1}, "swiglu must be true or false"),
        ({"class_token": False}, "reads the class token"),
        ({"distillation": True, "classifier": "gap"}, "distillation needs classifier 'token'"),
        ({"registers": 2, "position": "relative"}, "knows the class token alone"),
        ({"registers": 2, "mixer": "axial", "classifier": "gap"}, "registers have no place"),
        ({"qk_norm": True, "mixer": "local", "classifier": "gap"}, "qk_norm is for mixer"),
        ({"layer_scale": "x"}, "layer_scale must be a number"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TINY.with_settings(**settings)


def test_registers_are_no_query_of_an_attention_map() -> None:
    """Without a class token a map is the mean over the patches, not a register's."""
    model = build({"registers": 2, "classifier": "gap"})
    [(_, weights)] = model.attention(images(), [1])  # [B, K, T, T]
    wanted = weights[:, :, 2:, 2:].mean(dim=-2).unflatten(-1, (3, 5))
    assert torch.allclose(attention_maps(model, images(), [1])[:, 0], wanted, atol=1e-6)
    assert token_similarity(model, images()).shape == (2, 2, 3, 5)
