"""Cosine similarity of position embeddings, and its structure (Fig. 7, centre, and Fig. 10).

Tile (i, j) compares the embedding of the patch in row i, column j with that of every other patch.
Relative positions belong to offsets: there the embedding of the offset from one patch to another
is compared with that of the offset 0, so the patch itself has 1.

The paper says of Fig. 7 that closer patches have more similar embeddings and that rows and columns
show. `PositionStructure` measures that: the share of the variance of the similarities, over all
pairs of two patches, that is explained (R squared) by

- rows: how many rows apart the two are (each number of rows has its own mean);
- columns: the same for columns;
- rows and columns: a sum of a term for the first and a term for the second;
- distance: any function that never rises with the distance between them.

Random embeddings have about 0 everywhere, the sine table 1 for rows and columns together.

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
class PositionStructure:
    """Explained shares of the variance, 0 to 1; all 0 where all similarities are equal."""

    rows: float
    columns: float
    rows_and_columns: float
    distance: float


@dataclass(frozen=True)
class PositionSimilarity:
    """Similarity tables: one, or one for each layer that has its own positions."""

    values: np.ndarray  # [n, h, w, h, w] float32, from -1 to 1; NaN where no offset is learned
    layers: tuple[int, ...]  # [n], the layer that each table belongs to
    offsets: bool  # relative positions: see above

    def structures(self) -> list[PositionStructure]:
        """Fit the structure of each table."""
        return [fit_position_structure(table) for table in self.values]


@torch.no_grad()
def position_similarity(model: Model) -> PositionSimilarity:
    """Compare the position embeddings of the model's grid, without the class token.

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
        unit = normalize(table[:, config.num_prefix_tokens :].cpu().double(), dim=-1)
        values = unit @ unit.mT  # [n, N, N]
    by_grid = values.unflatten(2, config.grid).unflatten(1, config.grid)
    array = by_grid.float().cpu().numpy()
    return PositionSimilarity(array, tuple(range(len(array))), config.position == "relative")


def _offset_similarity(vit: ViT, layer: int) -> Tensor:
    """Compare the offset embeddings of a layer: [N, N], queries in rows; NaN outside its window."""
    mixer = cast(Attention, vit.encoder.blocks[layer].mixer)
    grid = vit.config.grid
    patches = torch.cartesian_prod(*(torch.arange(side) for side in grid)).reshape(-1, 2)
    if isinstance(mixer.relative, WindowRelativePositions):
        return _window_similarity(mixer.relative, patches)
    table = cast(RelativePositions, mixer.relative).table.cpu().double()  # [2n - 1, Dh]
    length = (len(table) + 1) // 2
    similarity = cosine_similarity(table, table[length - 1], dim=-1)  # [2n - 1]
    by_pair = similarity[relative_position_index(length)]  # [n, n]
    if not isinstance(mixer, AxialAttention):
        return by_pair
    along, across = (1, 0) if mixer.axis == "rows" else (0, 1)
    values = by_pair[patches[:, None, along], patches[None, :, along]]  # [N, N]
    same_line = patches[:, None, across] == patches[None, :, across]
    return values.masked_fill(~same_line, torch.nan)


def _window_similarity(relative: WindowRelativePositions, patches: Tensor) -> Tensor:
    """Compare offset embeddings within the window: rows and columns [N, 2] -> [N, N]."""
    rows, columns = relative.rows.cpu().double(), relative.columns.cpu().double()  # [W, Dh/2]
    window, radius = len(rows), len(rows) // 2
    shape = (window, window, rows.shape[1])
    table = torch.cat([rows[:, None].expand(shape), columns[None].expand(shape)], dim=-1)
    similarity = cosine_similarity(table, table[radius, radius], dim=-1)  # [W, W]
    offset = (patches[:, None] - patches).clamp(-radius, radius) + radius  # [N, N, 2]
    values = similarity[offset[..., 0], offset[..., 1]]
    return values.masked_fill(~window_mask(patches, patches, window), torch.nan)


def fit_position_structure(similarity: np.ndarray) -> PositionStructure:
    """Explain a similarity table [h, w, h, w] by rows, columns and distance; NaN is left out."""
    rows_apart, columns_apart, values = list_patch_pairs(similarity)
    cells = similarity.shape[1] * rows_apart + columns_apart
    present, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, values) / counts
    apart = np.divmod(present, similarity.shape[1])  # rows and columns apart of each cell
    total = ((values - values.mean()) ** 2).sum() if len(values) else 0.0
    if total <= len(values) * np.finfo(np.float32).eps ** 2:  # equal, to the rounding of float32
        return PositionStructure(0.0, 0.0, 0.0, 0.0)
    within = ((values - means[inverse]) ** 2).sum()

    def share(fitted: np.ndarray) -> float:
        """Return the share of the variance that fitted means [cells] explain."""
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
    """List rows apart, columns apart and similarity of each pair of two patches."""
    height, width = similarity.shape[:2]
    y, x = np.divmod(np.arange(height * width), width)
    values = similarity.reshape(height * width, -1).astype(np.float64)
    pairs = np.isfinite(values) & ~np.eye(len(values), dtype=bool)
    return np.abs(y[:, None] - y)[pairs], np.abs(x[:, None] - x)[pairs], values[pairs]


def fit_least_squares(design: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Fit means by terms [cells, terms], weighted by counts -> [cells]."""
    root = np.sqrt(counts)
    terms, *_ = np.linalg.lstsq(design * root[:, None], means * root, rcond=None)
    return design @ terms


def fit_non_increasing(distance: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Fit the nearest function that does not rise with the distance: [cells] -> [cells]."""
    from sklearn.isotonic import IsotonicRegression

    isotonic = IsotonicRegression(increasing=False)
    return isotonic.fit(distance, means, sample_weight=counts).predict(distance)
