"""Foreground, components and similarity of patch tokens, on planted ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drawn import drawn
from patchwords.interpret.patch_features import (
    analyse_patch_components,
    compute_patch_features,
    compute_patch_similarity,
    find_nearest_patches,
    median_random_patch_similarity,
    project_on_components,
)
from patchwords.models.build import build_model
from patchwords.models.config import ViTConfig
from patchwords.models.zoo import create_model

SHAPE = (3, 6, 8, 16)  # n, h, w, D


def plant(sign: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens with an object in the middle of each photo, and bool [n, h, w] of the object."""
    random = np.random.default_rng(0)
    tokens = random.normal(0, 0.1, SHAPE).astype(np.float32)
    inside = np.zeros(SHAPE[:3], dtype=bool)
    inside[:, 2:5, 2:6] = True
    tokens[inside, 0] += 5 * sign
    tokens[:, 2:5, 2:4, 1] += 2  # two halves of the object
    return tokens, inside


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_foreground_is_the_side_off_the_border(sign: float) -> None:
    tokens, inside = plant(sign)
    found = analyse_patch_components(tokens)
    assert np.array_equal(found.foreground, inside)
    assert np.array_equal(np.isnan(found.colours).any(-1), ~inside)
    colours = found.colours[inside]
    assert colours.min() == 0
    assert colours.max() == 1
    left, right = found.colours[:, 2:5, 2:4, 0], found.colours[:, 2:5, 4:6, 0]
    assert abs(left.mean() - right.mean()) > 0.8  # the first component of the object
    assert found.first_share > 0.8
    assert len(found.colour_shares) == 3


def test_tokens_that_are_all_alike_have_a_picture() -> None:
    found = analyse_patch_components(np.ones(SHAPE, dtype=np.float32))
    assert found.foreground.all()
    assert np.isfinite(found.colours).all()


def test_components_are_those_of_scikit_learn() -> None:
    from sklearn.decomposition import PCA

    tokens = np.random.default_rng(1).normal(size=(50, 7)) * np.arange(1, 8)
    scores, shares = project_on_components(tokens, 3)
    pca = PCA(3)
    expected = pca.fit_transform(tokens)
    assert np.allclose(np.abs(scores), np.abs(expected))
    assert np.allclose(shares, pca.explained_variance_ratio_)


def test_similarity_is_the_cosine() -> None:
    tokens, _ = plant()
    found = compute_patch_similarity(tokens, 1, (2, 3))
    a, b = tokens[1, 2, 3], tokens[2, 0, 7]
    assert found[2, 0, 7] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    assert find_nearest_patches(found)[1] == (2, 3)
    assert found[1, 2, 3] == pytest.approx(1)
    photo, (row, column) = 2, find_nearest_patches(found)[2]
    assert found[photo, row, column] == found[photo].max()
    chance = median_random_patch_similarity(tokens)
    assert chance is not None
    assert abs(chance) < 0.3
    assert median_random_patch_similarity(tokens[:1]) is None


def test_patches_are_those_of_the_model_without_the_class_token() -> None:
    config = ViTConfig(
        patch_size=4, width=12, depth=2, heads=2, mlp_width=8, image_size=(8, 12), num_classes=3
    )
    model = drawn(build_model(config))
    images = torch.randn(3, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        tokens = model.forward_features(images)[:, 1:].numpy()
    found = compute_patch_features(model, images)
    assert found.shape == (3, 2, 3, 12)
    assert np.allclose(found.reshape(3, 6, 12), tokens, atol=1e-5)
    resnet = create_model("BiT-R50x1", units=(1, 1, 1, 1), image_size=32, num_classes=2).eval()
    assert compute_patch_features(resnet, torch.zeros(2, 3, 64, 32)).shape == (2, 2, 1, 2048)
