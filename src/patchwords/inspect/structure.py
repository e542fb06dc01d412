"""How much of the similarity of positions is a matter of rows, of columns, and of distance.

The paper says of Fig. 7 that closer patches have more similar embeddings and that rows and columns
show. Here that is a number: the share of the variance of the similarities, over all pairs of two
patches, that is explained (R squared) by

- rows: how many rows apart the two are (each number of rows has a mean of its own);
- columns: the same for columns;
- rows and columns: a sum of a term for the first and a term for the second;
- distance: any function that never rises with the distance between them.

Random embeddings have about 0 everywhere, the sine table 1 for rows and columns together.

Sizes: h w grid, N = h*w patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PositionStructure:
    """Shares from 0 to 1; all 0 where similarities are equal, and there is nothing to explain."""

    rows: float
    columns: float
    rows_and_columns: float
    distance: float


def fit_position_structure(similarity: np.ndarray) -> PositionStructure:
    """[h, w, h, w], as of `position_similarity` (NaN is left out) -> shares"""
    down, across, values = list_patch_pairs(similarity)
    cells = similarity.shape[1] * down + across  # one for each (rows apart, columns apart)
    present, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, values) / counts
    apart = np.divmod(present, similarity.shape[1])  # rows, columns of each cell
    total = ((values - values.mean()) ** 2).sum() if len(values) else 0.0
    if total <= len(values) * np.finfo(np.float32).eps ** 2:  # equal, to the rounding of float32
        return PositionStructure(0.0, 0.0, 0.0, 0.0)
    within = ((values - means[inverse]) ** 2).sum()

    def share(fitted: np.ndarray) -> float:
        """[cells] -> the part of the variance that it explains"""
        left = within + (counts * (means - fitted) ** 2).sum()
        return float(max(0.0, 1 - left / total))

    rows, columns = (np.equal.outer(n, np.unique(n)).astype(float) for n in apart)  # [cells, .]
    return PositionStructure(
        rows=share(fit_least_squares(rows, means, counts)),
        columns=share(fit_least_squares(columns, means, counts)),
        rows_and_columns=share(fit_least_squares(np.hstack([rows, columns]), means, counts)),
        distance=share(fit_non_increasing(np.hypot(*apart), means, counts)),
    )


def list_patch_pairs(similarity: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[h, w, h, w] -> rows apart, columns apart and similarity of each pair of two patches"""
    height, width = similarity.shape[:2]
    y, x = np.divmod(np.arange(height * width), width)
    values = similarity.reshape(height * width, -1).astype(np.float64)
    used = np.isfinite(values) & ~np.eye(len(values), dtype=bool)
    return np.abs(y[:, None] - y)[used], np.abs(x[:, None] - x)[used], values[used]


def fit_least_squares(design: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[cells, terms] -> [cells], the fit to the means, each counted as often as it occurs"""
    root = np.sqrt(counts)
    terms, *_ = np.linalg.lstsq(design * root[:, None], means * root, rcond=None)
    return design @ terms


def fit_non_increasing(distance: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[cells] -> [cells], the nearest function that does not rise with the distance"""
    from sklearn.isotonic import IsotonicRegression

    isotonic = IsotonicRegression(increasing=False)
    return isotonic.fit(distance, means, sample_weight=counts).predict(distance)
