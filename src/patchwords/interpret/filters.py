"""Principal components of the filters that meet the pixels: Fig. 7, left.

Each output channel of the patch embedding (of a hybrid or a ResNet: of the first convolution) is a
filter of P x P x C weights; the components are the directions along which the filters differ most.
The paper shows the first 28 for ViT-L/32 and does not say how they were computed: here as by
scikit-learn's PCA, with the mean filter taken away.

Sizes: D filters, P side of a filter, C channels, n components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.models.build import Model
from patchwords.models.checks import check_count
from patchwords.models.conv_stem import ConvStem
from patchwords.models.resnet.trunk import StdConv, standardise_weight

NUM_COMPONENTS = 28  # as many as the paper shows


@dataclass(frozen=True)
class PrincipalFilters:
    """The components, by falling variance."""

    components: np.ndarray  # [n, P, P, C] float32, of length 1; the largest weight is positive
    explained: np.ndarray  # [n] float64, share of the variance of all filters
    of: str  # "patch embedding", "root convolution" or "first convolution"
    count: int  # D


def principal_filters(model: Model, components: int = NUM_COMPONENTS) -> PrincipalFilters:
    """The first components, fewer where there are not so many; a ResNet's, too.

    Raises ConfigError for a model with a single filter, which differs from nothing.
    """
    check_count("components", components)
    weights, of = get_embedding_filters(model)
    filters = weights.detach().cpu().double().numpy()  # [D, C, P, P]
    count, channels, side = filters.shape[:3]
    if count < 2:
        raise ConfigError(
            "principal components tell filters apart, and this model has a single one"
        )
    rows = filters.transpose(0, 2, 3, 1).reshape(count, -1)  # [D, P*P*C]
    rows = rows - rows.mean(axis=0)
    _, values, directions = np.linalg.svd(rows, full_matrices=False)
    most = min(components, count - 1, rows.shape[1])  # the mean is gone, and a dimension with it
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    variance = values**2
    return PrincipalFilters(
        (directions * signs[:, None])[:most].reshape(-1, side, side, channels).astype(np.float32),
        variance[:most] / max(variance.sum(), np.finfo(np.float64).tiny),
        of,
        count,
    )


def get_embedding_filters(model: Model) -> tuple[Tensor, str]:
    """[D, C, P, P] as images meet them, a root's standardised as in every forward pass"""
    if model.trunk is None:
        embedding: torch.nn.Conv2d = model.patch_embed
        return embedding.weight, "patch embedding"
    if isinstance(model.trunk, ConvStem):
        return model.trunk.layers[0].get_parameter("weight"), "first convolution"
    root: StdConv = model.trunk.root.conv
    weight = root.weight if root.form is None else standardise_weight(root.weight, root.form)
    return weight, "root convolution"
