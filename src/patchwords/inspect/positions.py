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
from patchwords.inspect.attention import require_vit
from patchwords.model.attention import Attention
from patchwords.model.axial import AxialAttention
from patchwords.model.family import Model
from patchwords.model.local import WindowRelativePositions, window_mask
from patchwords.model.relative import RelativePositions, relative_position_index
from patchwords.model.vit import ViT


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
        table = cast(Tensor, vit.positions(config.grid, vit.embed.weight))  # [n, T, D]
        unit = normalize(table[:, config.prefix :].double(), dim=-1)
        values = unit @ unit.mT  # [n, N, N]
    by_grid = values.unflatten(2, config.grid).unflatten(1, config.grid)
    array = by_grid.float().cpu().numpy()
    return PositionSimilarity(array, tuple(range(len(array))), config.position == "relative")


def _offset_similarity(vit: ViT, layer: int) -> Tensor:
    """-> [N, N], queries in rows; NaN where this layer never looks"""
    mixer = cast(Attention, vit.encoder.blocks[layer].attention)
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
