"""Position embeddings (Table 8, Appendix D.4), and resizing them to other grids (Sec. 3.2).

Sizes: n tables, h w grid of patches, N = h*w, T = N + prefix tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.mixers import get_mixer_class
from patchwords.models.relative import (
    resize_position_grid,
    resize_position_line,
)

SINCOS_TEMPERATURE = 10_000  # of the sine table, over 2 pi, in patches


class PositionEmbedding(nn.Module):
    """Positions that are added to the tokens; relative ones are in attention."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        tables = config.layers if config.position_at == "every" else 1
        width = config.width
        self.table: nn.Parameter | None = None
        self.rows: nn.Parameter | None = None
        self.columns: nn.Parameter | None = None
        self.class_token: nn.Parameter | None = None
        if config.position == "1d":
            rows = config.num_positioned_prefix + config.patches
            self.table = nn.Parameter(torch.zeros(tables, rows, width))
        if config.position == "2d":
            self.rows = nn.Parameter(torch.zeros(tables, config.grid[0], width // 2))
            self.columns = nn.Parameter(torch.zeros(tables, config.grid[1], width // 2))
            if config.num_positioned_prefix:
                shape = (tables, config.num_positioned_prefix, width)
                self.class_token = nn.Parameter(torch.zeros(shape))

    def forward(self, grid: tuple[int, int], like: Tensor | None = None) -> Tensor | None:
        """Return positions [1 or layers, T, D] for this grid of patches, or None.

        The sine table, which has no parameters, takes type and device of `like`.
        """
        config = self.config
        if self.table is not None:
            table = resize_positions(
                self.table, config.grid, grid, config.num_positioned_prefix, config.resize
            )
            return self.pad_prefix(table)
        if self.rows is not None and self.columns is not None:
            rows = resize_position_line(self.rows, grid[0], config.resize)
            columns = resize_position_line(self.columns, grid[1], config.resize)
            patches = concat_axis_embeddings(rows, columns)
            if self.class_token is not None:
                patches = torch.cat([self.class_token, patches], dim=1)
            return self.pad_prefix(patches)
        if config.position == "sincos2d":
            patches = posemb_sincos_2d(grid, config.width, torch.empty(0) if like is None else like)
            return torch.cat(
                [patches.new_zeros(1, config.num_prefix_tokens, config.width), patches], dim=1
            )
        return None

    def pad_prefix(self, table: Tensor) -> Tensor:
        """Add zeros for prefix tokens without a position: [n, rows, D] -> [n, T, D]."""
        positioned = self.config.num_positioned_prefix
        missing = self.config.num_prefix_tokens - positioned
        if not missing:
            return table
        zeros = table.new_zeros(table.shape[0], missing, table.shape[2])
        return torch.cat([table[:, :positioned], zeros, table[:, positioned:]], dim=1)


def concat_axis_embeddings(rows: Tensor, columns: Tensor) -> Tensor:
    """Join tables of rows [n, h, D/2] and columns [n, w, D/2], columns first: [n, N, D]."""
    shape = (rows.shape[0], rows.shape[1], columns.shape[1], rows.shape[2])  # [n, h, w, D/2]
    y, x = rows[:, :, None].expand(shape), columns[:, None].expand(shape)
    return torch.cat([x, y], dim=-1).flatten(1, 2)


def posemb_sincos_2d(
    grid: tuple[int, int], width: int, like: Tensor, *, reaches_end: bool = True
) -> Tensor:
    """Compute sin and cos of x, then of y, [1, N, D], as big_vision's models/vit.py does.

    D/4 frequencies fall from 1 to 1/10,000 radians per patch, or, where `reaches_end` is false, to
    the one before it, as in MAE (models_mae.py). Computed in float32 at least.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    steps = torch.arange(width // 4, dtype=dtype, device=like.device)
    last = max(width // 4 - 1, 1) if reaches_end else width // 4
    frequencies = SINCOS_TEMPERATURE ** -(steps / last)  # [D/4]; a single one is 1
    halves = []
    for side in grid:
        angles = torch.arange(side, dtype=dtype, device=like.device)[:, None] * frequencies
        halves.append(torch.cat([angles.sin(), angles.cos()], dim=-1)[None])  # [1, side, D/2]
    return concat_axis_embeddings(*halves).to(like.dtype)


def resize_positions(
    table: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    prefix: int = 1,
    method: str = "bilinear-corners",
) -> Tensor:
    """Resize a table [n, prefix + h*w, D] to a new grid; the prefix rows (class token) stay.

    For equal grids it is returned as it is.
    """
    if table.shape[1] != prefix + old_grid[0] * old_grid[1]:
        raise ConfigError(
            f"a position table of {table.shape[1]} rows is not {prefix} + "
            f"{old_grid[0]}x{old_grid[1]}: name the grid that it was made for"
        )
    if old_grid == new_grid:
        return table
    patches = resize_position_grid(table[:, prefix:].unflatten(1, old_grid), new_grid, method)
    return torch.cat([table[:, :prefix], patches.flatten(1, 2)], dim=1)


def resize_position_parameters(
    weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig
) -> dict[str, Tensor]:
    """Resize the positions in a ViT's state dict from the grid of `old` to that of `new`.

    The method is `old.resize`.

    The configs may differ in nothing else that shapes positions. The model then gives what it
    gave when it resized at every call. Raises ConfigError for a mixer that has one grid only.
    """
    resized = dict(weights)
    if "positions.table" in weights:
        resized["positions.table"] = resize_positions(
            weights["positions.table"], old.grid, new.grid, old.num_positioned_prefix, old.resize
        )
    for axis, name in enumerate(("positions.rows", "positions.columns")):
        if name in weights:
            resized[name] = resize_position_line(weights[name], new.grid[axis], old.resize)
    mixer = get_mixer_class(old.mixer)
    for layer in range(old.layers):
        prefix = f"encoder.blocks.{layer}.attention."
        parts = {
            name.removeprefix(prefix): value
            for name, value in weights.items()
            if name.startswith(prefix)
        }
        for name, value in mixer.resize(parts, old, new, layer).items():
            resized[prefix + name] = value
    return resized
