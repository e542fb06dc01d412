"""Smoothing by a normal curve, of any width, in images of any size.

A curve may reach farther than the image is large, so each direction is one product with a matrix
that has folded back what lies beyond the border. Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from patchwords.evaluate.robustness.sampling import mirror_indices

BorderMode = Literal["nearest", "reflect"]


def gaussian_filter(
    images: Tensor, deviation: float, truncate: float = 4.0, border: BorderMode = "nearest"
) -> Tensor:
    """[..., H, W], as scipy.ndimage.gaussian_filter does it with the same words.

    The curve is cut off after `truncate` deviations. Beyond its border the image is taken to go on
    as its last pixel ("nearest"), or to be mirrored, that pixel twice ("reflect").
    """
    if deviation == 0:
        return images
    height, width = images.shape[-2:]
    down = build_smoothing_matrix(height, deviation, truncate, border).to(images)  # [H, H]
    across = build_smoothing_matrix(width, deviation, truncate, border).to(images)  # [W, W]
    return down @ images @ across.T


@lru_cache(maxsize=32)
def build_smoothing_matrix(
    length: int, deviation: float, truncate: float, border: BorderMode
) -> Tensor:
    """float64 [length, length]: the part of each pixel (column) in each smoothed one (row)."""
    radius = int(truncate * deviation + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / deviation) ** 2)
    rows = np.arange(length)[:, None]
    columns = rows + offsets  # [length, 2 radius + 1]
    columns = (
        columns.clip(0, length - 1) if border == "nearest" else mirror_indices(columns, length)
    )
    matrix = np.zeros((length, length))
    np.add.at(matrix, (rows, columns), weights / weights.sum())
    return torch.from_numpy(matrix)
