"""Similarity of patch tokens to the token that the classifier reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.interpret import attention as module
from patchwords.interpret.attention import token_similarity
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT

Build = Callable[..., ViT]


def by_hand(model: ViT, images: torch.Tensor) -> np.ndarray:
    """[B, L, h, w]"""
    found = []
    for x in model.forward_intermediates(images).values():
        tokens = x.detach().numpy()
        patches = tokens[:, model.config.num_prefix_tokens :]
        read = tokens[:, 0] if model.config.num_prefix_tokens else patches.mean(1)
        cosine = np.einsum("bnd,bd->bn", patches, read)
        cosine /= np.linalg.norm(patches, axis=2) * np.linalg.norm(read, axis=1)[:, None]
        found.append(cosine.reshape(-1, 2, 3))
    return np.stack(found, axis=1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"classifier": "gap"},
        {"mixer": "identity"},
        {"position_at": "every"},
        {"mixer": "axial"},
    ],
    ids=str,
)
def test_parity_with_numpy(
    tiny: Build,
    images: torch.Tensor,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny(**settings)
    expected = by_hand(model, images)
    np.testing.assert_allclose(token_similarity(model, images).numpy(), expected, atol=1e-12)
    monkeypatch.setattr(module, "MAX_ATTENTION_ELEMENTS", 2 * model.config.layers * 7 * 20)
    np.testing.assert_allclose(token_similarity(model, images).numpy(), expected, atol=1e-12)


def test_a_resnet_has_no_tokens(resnet: ResNet) -> None:
    with pytest.raises(ConfigError, match="a ResNet has no patches"):
        token_similarity(resnet, torch.randn(1, 3, 32, 32))
