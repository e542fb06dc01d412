"""Cosine similarity of position embeddings: Fig. 7, centre, and Fig. 10 (Appendix D.4).

Tile (i, j) says how alike the embedding of the patch in row i, column j is to that of every other
patch. Relative positions belong to offsets, not to places. What is compared there is the embedding
of the offset from one patch to another with that of the offset 0: 1 for the patch itself.

Sizes: n tables, h w grid, N = h*w patches, T tokens, D width, W window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from patchwords.errors import ConfigError
from patchwords.interpret.attention import require_vit
from patchwords.models.attention import Attention
from patchwords.models.build import Model
from patchwords.models.mixers.axial import AxialAttention
from patchwords.models.mixers.local import WindowRelativePositions, window_mask
from patchwords.models.relative import RelativePositions, relative_position_index
from patchwords.models.vit import ViT


@dataclass(frozen=True)
class PositionSimilarity:
    """One table, or one for each layer where layers have their own."""

    values: np.ndarray  # [n, h, w, h, w] float32, from -1 to 1; NaN where no offset is learned
    layers: tuple[int, ...]  # [n], where each comes in
    offsets: bool  # relative positions: see above


@torch.no_grad()
def position_similarity(model: Model) -> PositionSimilarity:
    """Of the model's own grid, the class token left out.

    Raises ConfigError for a ResNet and for a ViT without positions.
    """
    vit = require_vit(model)
    config = vit.config
    if config.position == "none":
        raise ConfigError(
            "position 'none': this model has no position embeddings to compare; its filters can be "
            "shown, and its attention"
        )
    if config.position == "relative":
        tables = [_offset_similarity(vit, layer) for layer in range(config.layers)]
        values = torch.stack(tables)
    else:
        table = cast(Tensor, vit.positions(config.grid, vit.patch_embed.weight))  # [n, T, D]
        unit = normalize(table[:, config.num_prefix_tokens :].double(), dim=-1)
        values = unit @ unit.mT  # [n, N, N]
    by_grid = values.unflatten(2, config.grid).unflatten(1, config.grid)
    array = by_grid.float().cpu().numpy()
    return PositionSimilarity(array, tuple(range(len(array))), config.position == "relative")


def _offset_similarity(vit: ViT, layer: int) -> Tensor:
    """-> [N, N], queries in rows; NaN where this layer never looks"""
    mixer = cast(Attention, vit.encoder.blocks[layer].mixer)
    grid = vit.config.grid
    places = torch.cartesian_prod(*(torch.arange(side) for side in grid)).reshape(-1, 2)
    if isinstance(mixer.relative, WindowRelativePositions):
        return _window_similarity(mixer.relative, places)
    table = cast(RelativePositions, mixer.relative).table.double().cpu()  # [2n - 1, Dh]
    length = (len(table) + 1) // 2
    alike = cosine_similarity(table, table[length - 1], dim=-1)  # [2n - 1]
    if not isinstance(mixer, AxialAttention):
        return alike[relative_position_index(length)]
    along, across = (1, 0) if mixer.axis == "rows" else (0, 1)
    line = alike[relative_position_index(length)]  # [n, n]
    seen = line[places[:, None, along], places[None, :, along]]  # [N, N]
    same_line = places[:, None, across] == places[None, :, across]
    return seen.masked_fill(~same_line, torch.nan)


def _window_similarity(relative: WindowRelativePositions, places: Tensor) -> Tensor:
    """places [N, 2] -> [N, N]"""
    rows, columns = relative.rows.double().cpu(), relative.columns.double().cpu()  # [W, Dh/2]
    window, radius = len(rows), len(rows) // 2
    shape = (window, window, rows.shape[1])
    table = torch.cat([rows[:, None].expand(shape), columns[None].expand(shape)], dim=-1)
    alike = cosine_similarity(table, table[radius, radius], dim=-1)  # [W, W]
    offset = (places[:, None] - places).clamp(-radius, radius) + radius  # [N, N, 2]
    seen = alike[offset[..., 0], offset[..., 1]]
    return seen.masked_fill(~window_mask(places, places, window), torch.nan)


# How much of the similarity of positions is a matter of rows, of columns, and of distance.
#
# The paper says of Fig. 7 that closer patches have more similar embeddings and that rows and columns
# show. Here that is a number: the share of the variance of the similarities, over all pairs of two
# patches, that is explained (R squared) by
#
# - rows: how many rows apart the two are (each number of rows has a mean of its own);
# - columns: the same for columns;
# - rows and columns: a sum of a term for the first and a term for the second;
# - distance: any function that never rises with the distance between them.
#
# Random embeddings have about 0 everywhere, the sine table 1 for rows and columns together.
#
# Sizes: h w grid, N = h*w patches.


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
