"""Axial attention: Appendix D.6. A patch sees its row in one block and its column in the next.

Sizes: B batch, N = h*w patches, D width, K heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from patchwords.models.attention import (
    Attention,
    build_relative_positions,
    resize_relative_weights,
)
from patchwords.models.config import ViTConfig
from patchwords.models.mixers import MIXERS

Axis = Literal["rows", "columns"]


def get_layer_axis(layer: int) -> Axis:
    """Each of the paper's blocks is two: along rows first, then along columns."""
    return "rows" if layer % 2 == 0 else "columns"


def get_line_grid(axis: Axis, grid: tuple[int, int]) -> tuple[int, int]:
    """What a patch sees, as a grid of one row."""
    return 1, (grid[1] if axis == "rows" else grid[0])


class AxialAttention(Attention):
    """Attention within each row, or within each column, of the grid."""

    traits: ClassVar = MIXERS["axial"].traits

    def __init__(
        self, width: int, heads: int, axis: Axis, relative: nn.Module | None = None
    ) -> None:
        super().__init__(width, heads, relative)
        self.axis = axis

    @classmethod
    def build(cls, config: ViTConfig, layer: int) -> AxialAttention:
        axis = get_layer_axis(layer)
        line = get_line_grid(axis, config.grid)
        return cls(config.width, config.heads, axis, build_relative_positions(config, line))

    @classmethod
    def resize(
        cls, weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig, layer: int
    ) -> dict[str, Tensor]:
        """Fit the table of relative positions to the new length of a row or a column."""
        axis = get_layer_axis(layer)
        return resize_relative_weights(
            weights, get_line_grid(axis, old.grid), get_line_grid(axis, new.grid), old.resize
        )

    def forward(self, x: Tensor, grid: tuple[int, int], num_queries: int | None = None) -> Tensor:
        """[B, N, D] -> [B, N, D] or [B, F, D]"""
        lines = super().forward(self._lines(x, grid), get_line_grid(self.axis, grid))  # [B*h, w, D]
        if self.axis == "rows":
            return lines.reshape(x.shape)[:, :num_queries]
        return lines.unflatten(0, (-1, grid[1])).transpose(1, 2).flatten(1, 2)[:, :num_queries]

    def weights(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, K, N, N], zero outside the query's row or column"""
        a = super().weights(self._lines(x, grid), get_line_grid(self.axis, grid))  # [B*h, K, w, w]
        a = a.unflatten(0, (x.shape[0], -1)).permute(0, 2, 3, 4, 1)  # [B, K, w, w, h]
        a = torch.diag_embed(a)  # [B, K, w, w, h, h]: of query and key, along, then across
        order = (0, 1, 4, 2, 5, 3) if self.axis == "rows" else (0, 1, 2, 4, 3, 5)
        return a.permute(order).flatten(4).flatten(2, 3)  # from [B, K, h, w, h, w]

    def _lines(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B*h, w, D], or [B*w, h, D] along columns"""
        x = x.unflatten(1, grid)  # [B, h, w, D]
        return (x if self.axis == "rows" else x.transpose(1, 2)).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"axis={self.axis!r}"
