"""Principal components of filters against scikit-learn's, and the right way round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from patchwords.errors import ConfigError
from patchwords.interpret.filters import get_embedding_filters, principal_filters
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model

Build = Callable[..., ViT]


def test_parity_with_scikit_learn(tiny: Build) -> None:
    model = tiny(width=22, heads=1)
    filters = model.patch_embed.weight.detach().permute(0, 2, 3, 1).reshape(22, -1).numpy()
    pca = PCA(n_components=11).fit(filters)
    found = principal_filters(model, 11)
    assert found.components.shape == (11, 3, 3, 2)
    assert (found.layer, found.num_filters) == ("patch embedding", 22)
    np.testing.assert_allclose(found.explained, pca.explained_variance_ratio_, atol=1e-12)
    flat = found.components.reshape(11, -1)
    alike = np.abs((flat * pca.components_).sum(1))  # the sign is nobody's
    np.testing.assert_allclose(alike, 1, atol=1e-6)  # float32
    assert (flat[np.arange(11), np.abs(flat).argmax(1)] > 0).all()


def test_a_planted_component_keeps_its_orientation(tiny: Build) -> None:
    """Filters are a constant plus more or less of one pattern: row 0, column 2, channel 1."""
    model = tiny()
    with torch.no_grad():
        model.patch_embed.weight.fill_(0.7)
        model.patch_embed.weight[:, 1, 0, 2] += torch.linspace(-1, 2, 20)
    found = principal_filters(model)
    assert len(found.components) == 18  # P * P * C, fewer than 28
    assert found.explained[0] == pytest.approx(1)
    assert np.argwhere(np.abs(found.components[0]) > 1e-6).tolist() == [[0, 2, 1]]


def test_no_more_components_than_there_are_and_28_by_default(tiny: Build) -> None:
    assert len(principal_filters(tiny(width=10)).components) == 9
    many = principal_filters(create_model("ViT-Ti/16", depth=1))
    assert many.components.shape == (28, 16, 16, 3)
    assert 0 < many.explained.sum() < 1
    assert (np.diff(many.explained) <= 0).all()


def test_equal_filters_explain_nothing(tiny: Build) -> None:
    model = tiny()
    torch.nn.init.zeros_(model.patch_embed.weight)
    assert (principal_filters(model).explained == 0).all()


def test_a_resnet_and_a_hybrid_show_their_root_standardised(resnet: ResNet) -> None:
    found = principal_filters(resnet, 5)
    assert found.layer == "root convolution"
    assert found.components.shape == (5, 7, 7, 3)
    weight = resnet.trunk.root.conv.weight.detach().double()
    plain = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std(
        (1, 2, 3), correction=0, keepdim=True
    )
    torch.testing.assert_close(get_embedding_filters(resnet)[0].double(), plain, atol=1e-5, rtol=0)
    hybrid = create_model("R+ViT-Ti/16", image_size=64, depth=1)
    assert principal_filters(hybrid).components.shape == (28, 7, 7, 3)


def test_a_convolutional_stem_shows_its_first_layer() -> None:
    found = principal_filters(create_model("C+ViT-Ti/4", image_size=32, depth=1))
    assert found.layer == "first convolution"
    assert found.components.shape == (27, 3, 3, 3)


def test_refused(tiny: Build) -> None:
    with pytest.raises(ConfigError, match="this model has a single one"):
        principal_filters(tiny(width=1, heads=1))
    with pytest.raises(ConfigError, match="components must be a whole number from 1 up"):
        principal_filters(tiny(), 0)
