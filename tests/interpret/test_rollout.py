"""Attention Rollout against numpy, and what must hold of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.interpret import attention
from patchwords.interpret.attention import extract_query_map
from patchwords.interpret.faithfulness import compute_saliency_maps
from patchwords.interpret.rollout import attention_rollout, rollout_layers
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT

Build = Callable[..., ViT]


def random_attention(layers: int, tokens: int = 7) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(5, 2, tokens, tokens, generator=generator, dtype=torch.float64).softmax(-1)
        for _ in range(layers)
    ]


def test_parity_with_numpy() -> None:
    """The deeper layer stands on the left: its tokens are made of those before it."""
    layers = random_attention(3)
    expected = np.broadcast_to(np.eye(7), (5, 7, 7))
    for rolled, layer in zip(rollout_layers(layers), layers, strict=True):
        mixed = 0.5 * layer.numpy().mean(axis=1) + 0.5 * np.eye(7)
        expected = mixed / mixed.sum(-1, keepdims=True) @ expected
        np.testing.assert_allclose(rolled.numpy(), expected, atol=1e-14)


def test_a_path_through_two_layers() -> None:
    """Token 0 takes from 1 in the second layer, which took from 2 in the first."""
    first, second = torch.eye(3)[None, None].repeat(2, 1, 1, 1, 1).unbind()
    first[0, 0, 1] = torch.tensor([0.0, 0.0, 1.0])
    second[0, 0, 0] = torch.tensor([0.0, 1.0, 0.0])
    *_, rolled = rollout_layers([first, second])
    assert rolled[0, 0].tolist() == [0.5, 0.25, 0.25]


def test_identity_attention_gives_the_identity() -> None:
    same = torch.eye(7).expand(2, 3, 7, 7)
    for fusion in ("mean", "max", "min"):
        for rolled in rollout_layers([same] * 4, fusion):
            assert torch.equal(rolled, torch.eye(7).expand(2, 7, 7))


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("mixer", ["attention", "axial", "local"])
def test_rows_sum_to_one(tiny: Build, mixer: str, fusion: str) -> None:
    model = tiny(mixer=mixer, **({"window": 1} if mixer == "local" else {}))
    images = torch.randn(2, 2, 15, 6, dtype=torch.float64)  # another grid, 5 x 2
    rolled = attention_rollout(model, images, fusion=fusion)
    assert rolled.shape == (
        2,
        10 + model.config.num_prefix_tokens,
        10 + model.config.num_prefix_tokens,
    )
    torch.testing.assert_close(rolled.sum(-1), torch.ones_like(rolled[..., 0]), atol=1e-12, rtol=0)
    assert (rolled >= 0).all()


def test_fusions_differ_as_they_should() -> None:
    [layer] = random_attention(1)
    for fusion, fused in {"max": layer.numpy().max(1), "min": layer.numpy().min(1)}.items():
        mixed = fused + np.eye(7)
        expected = mixed / mixed.sum(-1, keepdims=True)
        [rolled] = rollout_layers([layer], fusion)
        np.testing.assert_allclose(rolled.numpy(), expected, atol=1e-14)
    with pytest.raises(ConfigError, match="unknown fusion 'median'"):
        next(rollout_layers([layer], "median"))


def test_from_one_layer_to_another(tiny: Build, images: torch.Tensor) -> None:
    model = tiny()
    layers = [a for _, a in model.attention(images)]
    for start, end, used in [
        (0, -1, layers),
        (1, 2, layers[1:]),
        (0, 1, layers[:2]),
        (-1, 2, layers[2:]),
    ]:
        *_, expected = rollout_layers(used)
        torch.testing.assert_close(attention_rollout(model, images, start, end), expected)
    with pytest.raises(ConfigError, match="rollout from layer 2 to 1"):
        attention_rollout(model, images, 2, 1)
    with pytest.raises(ConfigError, match="layer 9 does not exist"):
        attention_rollout(model, images, 0, 9)


def test_portions_and_half_precision(
    tiny: Build, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    whole = attention_rollout(model, images)
    monkeypatch.setattr(attention, "MAX_ATTENTION_ELEMENTS", 1)
    torch.testing.assert_close(attention_rollout(model, images), whole, atol=1e-12, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        rough = attention_rollout(model.float(), images.float())
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough.sum(-1), torch.ones(5, 7), atol=1e-2, rtol=0)


def test_no_attention_no_rollout(tiny: Build, images: torch.Tensor, resnet: ResNet) -> None:
    with pytest.raises(ConfigError, match="a ResNet has no patches"):
        attention_rollout(resnet, torch.randn(1, 3, 32, 32))
    with pytest.raises(ConfigError, match="mixer 'identity' has no attention"):
        attention_rollout(tiny(mixer="identity"), images)


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_the_maps_that_are_compared(tiny: Build, images: torch.Tensor, classifier: str) -> None:
    model = tiny(classifier=classifier)
    prefix = model.config.num_prefix_tokens
    maps = compute_saliency_maps(model, images)
    assert list(maps) == ["last layer", "rollout"]
    *_, (_, last) = model.attention(images)
    expected = extract_query_map(last.mean(1), (2, 3), prefix)
    torch.testing.assert_close(maps["last layer"], expected)
    expected = extract_query_map(attention_rollout(model, images), (2, 3), prefix)
    torch.testing.assert_close(maps["rollout"], expected)
    assert list(compute_saliency_maps(model, images, torch.zeros(5)))[-1] == "gradient rollout"
