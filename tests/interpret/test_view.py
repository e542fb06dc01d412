"""All of a model's attention on a photo: that it is the model's, and how little is held at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, DataError
from patchwords.interpret.view import (
    AttentionView,
    attention_view_shape,
    build_attention_view,
    decode_attention,
)
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT
from patchwords.models.zoo import resolve_model

Build = Callable[..., ViT]
LABELS = ("a", "b", "c", "d", "e", "f", "g")


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def seen(model: Any, pixels: np.ndarray, **settings: Any) -> AttentionView:
    height, width, channels = pixels.shape
    preprocess = Preprocess((height, width), channels=channels)  # type: ignore[arg-type]
    return build_attention_view(model, preprocess, pixels, photo="p.jpg", name="tiny", **settings)


@pytest.mark.parametrize("classifier", ["token", "gap"])
@pytest.mark.parametrize("mixer", ["attention", "axial"])
def test_it_is_the_models(tiny: Build, pixels: np.ndarray, mixer: str, classifier: str) -> None:
    model = tiny(channels=3, mixer=mixer, classifier=classifier_of(mixer, classifier)).float()
    view = seen(model, pixels, labels=LABELS)
    images = torch.from_numpy(pixels / np.float32(127.5) - 1).permute(2, 0, 1)[None]
    with torch.no_grad():
        expected = np.stack([a[0].numpy() for _, a in model.attention(images)])  # [L, K, T, T]
        scores = model(images)[0].softmax(-1).numpy()
    assert view.codes.shape == expected.shape
    worst = np.abs(decode_attention(view.codes) - expected).max()
    assert worst == pytest.approx(view.error, abs=1e-6)  # float32 sums of another batch
    assert 0 < worst < 0.012
    assert (view.grid, view.prefix, view.heads) == ((2, 3), model.config.num_prefix_tokens, 2)
    assert [label for label, _ in view.answers] == [LABELS[i] for i in np.argsort(-scores)[:5]]
    np.testing.assert_allclose([p for _, p in view.answers], np.sort(scores)[:1:-1], rtol=1e-4)
    assert (view.pixels == pixels).all()


def classifier_of(mixer: str, classifier: str) -> str:
    return "gap" if mixer == "axial" else classifier  # which has no place for a class token


def test_the_mean_of_the_heads(tiny: Build, pixels: np.ndarray) -> None:
    model = tiny(channels=3).float()
    every, mean = seen(model, pixels, heads="all"), seen(model, pixels, heads="mean")
    assert mean.codes.shape == (3, 1, 7, 7)
    assert mean.heads == 2
    expected = decode_attention(every.codes).mean(1, keepdims=True)
    assert max(mean.error, every.error) < 0.006
    np.testing.assert_allclose(decode_attention(mean.codes), expected, atol=0.006)
    assert seen(model, pixels).answers == ()


def test_auto_goes_by_size() -> None:
    base, large = (resolve_model(name).config for name in ("ViT-B/16", "ViT-L/16"))
    assert attention_view_shape(base, (14, 14)) == (12, 12, 197)
    assert attention_view_shape(large, (14, 14)) == (24, 1, 197)
    assert attention_view_shape(large, (14, 14), "all") == (24, 16, 197)
    assert attention_view_shape(base, (24, 24)) == (12, 1, 577)
    assert attention_view_shape(base, (14, 14), "mean") == (12, 1, 197)


def test_grey_photos(tiny: Build, pixels: np.ndarray) -> None:
    view = seen(tiny(channels=1).float(), pixels[:, :, :1])
    assert (view.pixels == pixels[:, :, :1]).all()
    assert view.pixels.shape == (6, 9, 3)


def test_one_layer_at_a_time(
    tiny: Build, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer is gone before the next one comes."""
    model = tiny(channels=3).float()
    stream, held = model.attention, []

    def watched(images: Tensor) -> Iterator[tuple[int, Tensor]]:
        last: weakref.ref[Tensor] | None = None
        for layer, attention in stream(images):
            held.append(last is not None and last() is not None)
            last = weakref.ref(attention)
            yield layer, attention
            del attention

    monkeypatch.setattr(model, "attention", watched)
    seen(model, pixels)
    assert held == [False] * 3


@pytest.mark.parametrize("mixer", ["pooling", "mlp", "identity"])
def test_without_attention(tiny: Build, pixels: np.ndarray, resnet: ResNet, mixer: str) -> None:
    with pytest.raises(ConfigError, match="attention"):
        seen(tiny(channels=3, mixer=mixer).float(), pixels)
    with pytest.raises(ConfigError, match="ResNet"):
        seen(resnet, pixels)


def test_a_model_that_has_diverged(tiny: Build, pixels: np.ndarray) -> None:
    model = tiny(channels=3).float()
    with torch.no_grad():
        model.patch_embed.weight.fill_(torch.nan)
    with pytest.raises(DataError, match="diverged"):
        seen(model, pixels)
