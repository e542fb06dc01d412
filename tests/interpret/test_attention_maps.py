"""Attention maps: rows of a softmax written out, the right way round, from the right query."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.interpret import attention as module
from patchwords.interpret.attention import (
    attention_maps,
    check_heads,
    choose_chunk_size,
    extract_query_map,
)
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT

Build = Callable[..., ViT]


def softmax_by_hand(model: ViT, images: torch.Tensor) -> np.ndarray:
    """[B, K, T, T] of the first layer, Eq. 6 in numpy"""
    block = model.encoder.blocks[0]
    x = model.tokens(images).detach().numpy()
    norm = block.norm1
    z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + norm.eps)
    z = z * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    qkv = z @ block.mixer.qkv.weight.detach().numpy().T
    qkv = qkv + block.mixer.qkv.bias.detach().numpy()
    width, heads = model.config.width, model.config.heads
    a = np.empty((len(x), heads, x.shape[1], x.shape[1]))
    for head in range(heads):
        part = slice(head * width // heads, (head + 1) * width // heads)
        q, k = qkv[..., :width][..., part], qkv[..., width : 2 * width][..., part]
        logits = q @ k.swapaxes(1, 2) / np.sqrt(width // heads)
        e = np.exp(logits - logits.max(-1, keepdims=True))
        a[:, head] = e / e.sum(-1, keepdims=True)
    return a


def test_maps_are_rows_of_the_softmax(tiny: Build, images: torch.Tensor) -> None:
    model = tiny()
    by_hand = softmax_by_hand(model, images)
    of_class = attention_maps(model, images, [0]).numpy()
    of_patch = attention_maps(model, images, [0], query=(1, 2)).numpy()
    assert of_class.shape == (5, 1, 2, 2, 3)  # B, L, K, h, w
    # float64: rounding of a few operations
    np.testing.assert_allclose(of_class[:, 0], by_hand[:, :, 0, 1:].reshape(5, 2, 2, 3), atol=1e-12)
    np.testing.assert_allclose(of_patch[:, 0], by_hand[:, :, 6, 1:].reshape(5, 2, 2, 3), atol=1e-12)


def test_without_a_class_token_the_mean_over_patches(tiny: Build, images: torch.Tensor) -> None:
    model = tiny(classifier="gap")
    maps = attention_maps(model, images, [0]).numpy()
    by_hand = softmax_by_hand(model, images).mean(2).reshape(5, 2, 2, 3)
    np.testing.assert_allclose(maps[:, 0], by_hand, atol=1e-12)
    np.testing.assert_allclose(maps.sum((-1, -2)), 1, atol=1e-12)


def test_rectangles_keep_their_orientation() -> None:
    matrix = torch.zeros(7, 7)
    matrix[0, 1 + 1 * 3 + 2] = 1.0  # the class token looks at row 1, column 2 of 2 x 3
    matrix[1 + 0 * 3 + 1, 1 + 2] = 1.0  # row 0, column 1 looks at row 0, column 2
    assert extract_query_map(matrix, (2, 3), 1).nonzero().tolist() == [[1, 2]]
    assert extract_query_map(matrix, (2, 3), 1, (0, 1)).nonzero().tolist() == [[0, 2]]


def test_any_resolution_and_every_layer(tiny: Build) -> None:
    maps = attention_maps(tiny(), torch.randn(1, 2, 15, 6, dtype=torch.float64))
    assert maps.shape == (1, 3, 2, 5, 2)


def test_a_few_images_at_a_time_give_the_same(
    tiny: Build, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    whole = attention_maps(model, images)
    monkeypatch.setattr(module, "MAX_ATTENTION_ELEMENTS", 2 * 2 * 7 * 7)  # two images
    assert choose_chunk_size(model.config, (2, 3)) == 2
    assert choose_chunk_size(model.config, (9, 9)) == 1
    # kernels may round otherwise for other batches
    torch.testing.assert_close(attention_maps(model, images), whole, atol=1e-12, rtol=0)


def test_what_is_not_there(tiny: Build, images: torch.Tensor, resnet: ResNet) -> None:
    with pytest.raises(ConfigError, match=r"layer 3 does not exist: this model has 3, 0 to 2"):
        attention_maps(tiny(), images, [3])
    with pytest.raises(ConfigError, match=r"patch 2 0 is not on the grid of 2x3: rows are 0 to 1"):
        attention_maps(tiny(), images, query=(2, 0))
    with pytest.raises(ConfigError, match="patch 0 -1 is not on the grid"):
        attention_maps(tiny(), images, query=(0, -1))
    with pytest.raises(ConfigError, match=r"head 2 does not exist: this model has 2, 0 to 1"):
        check_heads([0, 2], 2)
    assert check_heads([-1, 0], 2) == [1, 0]
    with pytest.raises(ConfigError, match=r"a ResNet has no patches .* its filters can"):
        attention_maps(resnet, torch.randn(1, 3, 32, 32))
    with pytest.raises(ConfigError, match="does not divide into patches of 3"):
        attention_maps(tiny(), images[:, :, :2, :2])


@pytest.mark.parametrize("mixer", ["identity", "pooling", "mlp"])
def test_mixers_without_attention_say_so(tiny: Build, images: torch.Tensor, mixer: str) -> None:
    with pytest.raises(ConfigError, match=f"mixer '{mixer}' has no attention .* filters and pos"):
        attention_maps(tiny(mixer=mixer), images)
