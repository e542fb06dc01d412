"""Mean attention distance: planted heads with known distances, streaming, and its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from patchwords.errors import ConfigError, DataError
from patchwords.interpret import attention
from patchwords.interpret.distance import attention_distance, mean_head_distance, patch_distances
from patchwords.models.attention import Attention
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT

Build = Callable[..., ViT]


def by_loops(a: np.ndarray, grid: tuple[int, int], stride: int, prefix: int) -> float:
    """[T, T] -> pixels, patch by patch"""
    places = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
    total = 0.0
    for i, (y, x) in enumerate(places):
        row = a[prefix + i, prefix:]
        apart = [stride * np.sqrt((y - v) ** 2 + (x - u) ** 2) for v, u in places]
        total += sum(row * apart) / row.sum()
    return total / len(places)


def test_distances_are_in_pixels_on_rectangles() -> None:
    between = patch_distances((2, 3), 5)
    assert between.shape == (6, 6)
    assert between[0].tolist() == pytest.approx([0, 5, 10, 5, 50**0.5, 125**0.5])
    assert torch.equal(between, between.T)


def test_a_planted_head_has_the_known_distance() -> None:
    """One head looks at its right neighbour in the row, around the edge; one at itself."""
    planted = torch.zeros(1, 2, 7, 7)
    for i in range(6):
        planted[0, 0, 1 + i, 1 + i // 3 * 3 + (i + 1) % 3] = 1.0
        planted[0, 1, 1 + i, 1 + i] = 1.0
    found = mean_head_distance(planted, patch_distances((2, 3), 5), prefix=1)
    # of three places in a row two step 5 pixels, and the last goes back by 10
    assert found[0].tolist() == pytest.approx([(5 + 5 + 10) / 3, 0])


def test_the_class_token_is_left_out_and_rows_renormalised() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(1, 1, 7, 7, generator=generator, dtype=torch.float64).softmax(-1)
    between = patch_distances((2, 3), 5, a)
    expected = by_loops(a[0, 0].numpy(), (2, 3), 5, prefix=1)
    assert mean_head_distance(a, between, 1).item() == pytest.approx(expected, abs=1e-12)
    greedy = a.clone()
    greedy[..., 0] = 50 * greedy[..., 0]  # whatever the class token gets
    assert mean_head_distance(greedy, between, 1).item() == pytest.approx(expected, abs=1e-12)


def follow(model: ViT, towards: list[int]) -> None:
    """Weights by which the patch i of one-head layer 0 attends to the patch towards[i] alone."""
    width, tokens = model.config.width, model.config.tokens
    aim = torch.eye(width, dtype=torch.float64)
    for i, j in enumerate(towards):
        aim[1 + i] = torch.eye(width)[1 + j]
    block = model.encoder.blocks[0]
    with torch.no_grad():
        for parameter in (*model.patch_embed.parameters(), model.class_token):
            parameter.zero_()
        model.positions.table.copy_(torch.eye(width)[:tokens])
        for norm in (block.norm1,):
            norm.weight.fill_(1.0)
            norm.bias.zero_()
        block.mixer.qkv.bias.zero_()
        block.mixer.qkv.weight[:width] = 10 * aim.T
        block.mixer.qkv.weight[width : 2 * width] = 10 * torch.eye(width)


def test_a_planted_model_has_the_known_distance(tiny: Build, images: torch.Tensor) -> None:
    """Patches of 3 pixels, 2 x 3 of them: the first row looks down, the second at its left end."""
    model = tiny(heads=1)
    follow(model, [3, 4, 5, 3, 3, 3])
    found = attention_distance(model, [images], [0])
    assert found.pixels.shape == (5, 1, 1)
    # 1e-6: what is left of a softmax at 400 times the others' logits
    assert found.mean.item() == pytest.approx((3 * 3 + 0 + 3 + 6) / 6, abs=1e-6)


def test_uniform_attention_has_the_uniform_distance(tiny: Build, images: torch.Tensor) -> None:
    model = tiny()
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.mixer.qkv.weight.zero_()
    found = attention_distance(model, [images])
    expected = by_loops(np.full((7, 7), 1 / 7), (2, 3), 3, 1)
    assert found.uniform == pytest.approx(expected)
    np.testing.assert_allclose(found.pixels, expected)


def test_a_hybrid_counts_the_pixels_of_the_image() -> None:
    """Patches of 1 place on a feature map of stride 16."""
    from patchwords.models.zoo import create_model

    model = create_model("R+ViT-Ti/16", num_classes=3, image_size=64, depth=1)
    found = attention_distance(model.eval(), [torch.zeros(1, 3, 64, 64)])
    stride = model.config.stride
    places = [(y, x) for y in range(64 // stride) for x in range(64 // stride)]
    apart = [stride * np.hypot(a - c, b - d) for a, b in places for c, d in places]
    assert found.uniform == pytest.approx(np.mean(apart))


def test_streamed_is_all_at_once(
    tiny: Build, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    whole = attention_distance(model, [images])
    expected = [
        [
            [by_loops(a[i, k].detach().numpy(), (2, 3), 3, 1) for k in range(2)]
            for _, a in model.attention(images)
        ]
        for i in range(5)
    ]
    np.testing.assert_allclose(whole.pixels, expected, atol=1e-12)
    np.testing.assert_allclose(whole.mean, np.mean(expected, axis=0), atol=1e-12)
    np.testing.assert_allclose(whole.error, np.std(expected, axis=0, ddof=1) / 5**0.5, atol=1e-12)
    monkeypatch.setattr(attention, "MAX_ATTENTION_ELEMENTS", 2 * 2 * 7 * 7)
    streamed = attention_distance(model, iter([images[:3], images[3:]]))
    np.testing.assert_allclose(streamed.pixels, whole.pixels, atol=1e-12)
    assert np.isnan(attention_distance(model, [images[:1]]).error).all()
    chosen = attention_distance(model, [images], [-1, 0])
    assert chosen.layers == (0, 2)
    np.testing.assert_allclose(chosen.pixels, whole.pixels[:, [0, 2]], atol=1e-12)


def test_one_layer_of_few_images_is_in_memory(
    tiny: Build, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most, largest = 0, 0
    weights = Attention.weights

    def watched(self: Attention, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        nonlocal most, largest
        most = max(most, sum(made() is not None for made in alive))
        made = weights(self, x, grid)
        largest = max(largest, len(made))
        alive.append(weakref.ref(made))
        return made

    monkeypatch.setattr(Attention, "weights", watched)
    monkeypatch.setattr(attention, "MAX_ATTENTION_ELEMENTS", 2 * 2 * 7 * 7)
    attention_distance(tiny(), [images])
    assert len(alive) == 3 * 3  # layers, portions
    assert largest == 2  # images at a time
    assert most <= 1  # the last layer may still be there while the next is made


def test_what_has_no_distance(tiny: Build, images: torch.Tensor, resnet: ResNet) -> None:
    with pytest.raises(DataError, match="there are none"):
        attention_distance(tiny(), [])
    with pytest.raises(ConfigError, match="a ResNet has no patches"):
        attention_distance(resnet, [torch.randn(1, 3, 32, 32)])
    with pytest.raises(ConfigError, match="mixer 'mlp' has no attention"):
        attention_distance(tiny(mixer="mlp"), [images])
    with pytest.raises(ConfigError, match="layer 3 does not exist"):
        attention_distance(tiny(), [images], [3])
