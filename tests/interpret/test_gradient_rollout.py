"""Gradient-weighted rollout against finite differences, and that it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.interpret import attention
from patchwords.interpret.rollout import forward_with_attention, gradient_rollout
from patchwords.models.vit import ViT

Build = Callable[..., ViT]
MIXERS = [("attention", {}), ("axial", {}), ("local", {"window": 1})]


class Nudged(torch.nn.Module):
    """Attention that can be changed by hand before it meets the values."""

    def __init__(self, mixer: torch.nn.Module) -> None:
        super().__init__()
        self.mixer, self.nudge = mixer, torch.tensor(0.0)

    def forward(
        self, x: torch.Tensor, grid: tuple[int, int], num_queries: int | None = None
    ) -> torch.Tensor:
        _, _, v = self.mixer.project(x)
        y = (self.mixer.weights(x, grid) + self.nudge) @ v
        return self.mixer.proj(y.transpose(1, 2).flatten(2))[:, :num_queries]


@torch.no_grad()
def by_differences(model: ViT, image: torch.Tensor, answer: int, step: float = 1e-5) -> np.ndarray:
    """[T, T]: Eqs. 5 and 6 with a gradient from two forward passes for every weight"""
    attentions = [a[0].numpy() for _, a in model.attention(image)]
    relevance = np.eye(attentions[0].shape[-1])
    for layer, a in enumerate(attentions):
        block = model.encoder.blocks[layer]
        kept = block.mixer
        nudged = block.mixer = Nudged(kept)
        gradient = np.empty_like(a)
        for place in np.ndindex(*a.shape):
            nudged.nudge = torch.zeros(1, *a.shape, dtype=torch.float64)
            nudged.nudge[(0, *place)] = step
            up = model(image)[0, answer]
            nudged.nudge = -nudged.nudge
            gradient[place] = (up - model(image)[0, answer]) / (2 * step)
        block.mixer = kept
        relevance = relevance + np.maximum(gradient * a, 0).mean(axis=0) @ relevance
    return relevance


@pytest.mark.parametrize("classifier", ["token", "map"])
def test_parity_with_finite_differences(tiny: Build, images: torch.Tensor, classifier: str) -> None:
    model = tiny(classifier=classifier, depth=2)
    image = images[:1]
    expected = by_differences(model, image, answer=4)
    found = gradient_rollout(model, image, [4])[0].numpy()
    assert np.abs(expected - np.eye(len(expected))).max() > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-6)  # of the differences, at step 1e-5


@pytest.mark.parametrize(("mixer", "settings"), MIXERS)
def test_the_logits_are_those_of_the_fused_kernel(
    tiny: Build, images: torch.Tensor, mixer: str, settings: dict[str, int]
) -> None:
    for position in ("1d", "relative"):
        model = tiny(mixer=mixer, position=position, classifier="gap", **settings)
        logits, attentions = forward_with_attention(model, images)
        torch.testing.assert_close(logits, model(images), atol=1e-10, rtol=0)
        assert len(attentions) == model.config.layers
    every = tiny(position_at="every")
    logits, _ = forward_with_attention(every, images)
    torch.testing.assert_close(logits, every(images), atol=1e-10, rtol=0)


def test_each_image_has_its_own_class(tiny: Build, images: torch.Tensor) -> None:
    model = tiny()
    answers = model(images).argmax(-1)
    assert len(set(answers.tolist())) > 1
    together = gradient_rollout(model, images)
    for i, image in enumerate(images):
        alone = gradient_rollout(model, image[None], [int(answers[i])])
        torch.testing.assert_close(together[i], alone[0], atol=1e-10, rtol=0)
    other = gradient_rollout(model, images, (answers + 1) % 7)
    assert not torch.allclose(together, other, atol=1e-3)


def test_portions_are_of_all_layers(
    tiny: Build, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    classes = [6, 2, 4, 0, 3]
    whole = gradient_rollout(model, images, classes)
    monkeypatch.setattr(
        attention, "MAX_ATTENTION_ELEMENTS", 2 * 3 * 2 * 7 * 7
    )  # two images, three layers
    sizes = []
    forward = torch.nn.Conv2d.forward
    monkeypatch.setattr(
        torch.nn.Conv2d, "forward", lambda self, x: sizes.append(len(x)) or forward(self, x)
    )
    torch.testing.assert_close(gradient_rollout(model, images, classes), whole, atol=1e-10, rtol=0)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off_and_leaves_none(
    tiny: Build, images: torch.Tensor, mode: Callable[[], object]
) -> None:
    model = tiny()
    expected = gradient_rollout(model, images)
    assert all(parameter.grad is None for parameter in model.parameters())
    model.requires_grad_(False)
    with mode():
        found = gradient_rollout(model, images * 1.0)  # made in this mode
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_classes_that_are_not_there(tiny: Build, images: torch.Tensor) -> None:
    for classes in ([7] * 5, [-1] * 5, [0, 1]):
        with pytest.raises(ConfigError, match="not one of 0 to 6 for each of 5 images"):
            gradient_rollout(tiny(), images, classes)
    with pytest.raises(ConfigError, match="mixer 'pooling' has no attention"):
        gradient_rollout(tiny(mixer="pooling"), images)
