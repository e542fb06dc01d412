"""Cells of an image: a grid of near-equal rectangles, and squares of some pixels.

Sizes: B batch, H W image, g x g cells.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid_cells(size: tuple[int, int], grid: int, device: torch.device | str = "cpu") -> Tensor:
    """int64 [H, W], the cell of every pixel of a g x g grid, row after row.

    Sides that g does not divide give cells that differ by one pixel at most.
    """
    rows, columns = (assign_parts(length, grid, device) for length in size)  # [H], [W]
    return rows[:, None] * grid + columns


def mean_per_cell(values: Tensor, grid: int) -> Tensor:
    """[B, H, W] -> [B, g * g], the mean over the pixels of each cell of `grid_cells`"""
    across = []
    for length in values.shape[1:]:
        parts = torch.arange(grid, device=values.device)[:, None] == assign_parts(
            length, grid, values.device
        )
        across.append(parts.to(values.dtype) / parts.sum(1, keepdim=True))  # [g, H] and [g, W]
    rows, columns = across
    return (rows @ values @ columns.T).flatten(1)


def assign_parts(length: int, parts: int, device: torch.device | str) -> Tensor:
    """int64 [length], of which part each place is"""
    return torch.arange(length, device=device) * parts // length


def square_cells(size: tuple[int, int], side: int) -> Tensor:
    """int64 [H, W], the cell of every pixel, of squares of `side` pixels; the last are cut off."""
    rows, columns = (torch.arange(length) // side for length in size)
    return rows[:, None] * (-(-size[1] // side)) + columns
