"""Principal components of the patch embedding's filters (Fig. 7, left).

Each output channel of the patch embedding (of a hybrid or a ResNet: of the first convolution) is a
filter of P x P x C weights; the components are the directions along which the filters differ most.
The paper shows the first 28 for ViT-L/32 and does not say how they were computed: here as by
scikit-learn's PCA, which subtracts the mean filter.

Sizes: D filters, P side of a filter, C channels, n components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """Principal components of a model's filters, by falling variance."""

    components: np.ndarray  # [n, P, P, C] float32, of length 1; the largest weight is positive
    explained: np.ndarray  # [n] float64, share of the variance of all filters
    layer: str  # "patch embedding", "root convolution" or "first convolution"
    num_filters: int  # D

    def to_dict(self) -> dict[str, Any]:
        """Return the shares of the variance as JSON values."""
        return {
            "of": self.layer,
            "filters": self.num_filters,
            "explained": self.explained.tolist(),
        }


def principal_filters(model: Model, components: int = NUM_COMPONENTS) -> PrincipalFilters:
    """Compute the first principal components of the filters, of a ViT or a ResNet.

    Raises ConfigError for a model with a single filter.
    """
    check_count("components", components)
    weights, layer = get_embedding_filters(model)
    filters = weights.detach().cpu().double().numpy()  # [D, C, P, P]
    count, channels, side = filters.shape[:3]
    if count < 2:
        raise ConfigError(
            "principal components tell filters apart, and this model has a single one"
        )
    rows = filters.transpose(0, 2, 3, 1).reshape(count, -1)  # [D, P*P*C]
    rows = rows - rows.mean(axis=0)
    _, values, directions = np.linalg.svd(rows, full_matrices=False)
    n = min(components, count - 1, rows.shape[1])  # the mean took one dimension away
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    variance = values**2
    return PrincipalFilters(
        (directions * signs[:, None])[:n].reshape(-1, side, side, channels).astype(np.float32),
        variance[:n] / max(variance.sum(), np.finfo(np.float64).tiny),
        layer,
        count,
    )


def get_embedding_filters(model: Model) -> tuple[Tensor, str]:
    """Return the filters [D, C, P, P] as the forward pass uses them, and their layer's name."""
    if model.trunk is None:
        embedding: torch.nn.Conv2d = model.patch_embed
        return embedding.weight, "patch embedding"
    if isinstance(model.trunk, ConvStem):
        return model.trunk.layers[0].get_parameter("weight"), "first convolution"
    root: StdConv = model.trunk.root.conv
    weight = root.weight if root.form is None else standardise_weight(root.weight, root.form)
    return weight, "root convolution"
