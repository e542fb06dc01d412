"""Position embeddings on another grid than they were learned on: Sec. 3.2.

Sizes: T = h*w + prefix tokens, D width; h w grid of patches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from patchwords.errors import ConfigError, did_you_mean

# The authors' scipy.ndimage.zoom(order=1) keeps the corner patches in place, which is what torch
# calls align_corners=True. timm's loaders do the other.
METHODS: dict[str, dict[str, Any]] = {
    "bilinear-corners": {"mode": "bilinear", "align_corners": True},
    "bicubic-antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},
}


def resize_positions(
    table: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    prefix: int = 1,
    method: str = "bilinear-corners",
) -> Tensor:
    """[1, prefix + h*w, D] -> [1, prefix + h'*w', D]; the prefix rows (class token) are kept.

    Equal grids give the table itself.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown resize {method!r}{did_you_mean(method, METHODS)}")
    if table.shape[1] != prefix + old_grid[0] * old_grid[1]:
        raise ConfigError(
            f"a position table of {table.shape[1]} rows is not {prefix} + "
            f"{old_grid[0]}x{old_grid[1]}: name the grid that it was made for"
        )
    if old_grid == new_grid:
        return table
    # Half precisions are resized in float32: not every kernel has them, and they would round twice.
    dtype = torch.promote_types(table.dtype, torch.float32)
    grid = table[:, prefix:].to(dtype).unflatten(1, old_grid).permute(0, 3, 1, 2)  # [1, D, h, w]
    grid = interpolate(grid, size=new_grid, **METHODS[method])  # [1, D, h', w']
    rows = grid.flatten(2).transpose(1, 2).to(table.dtype)  # [1, h'*w', D]
    return torch.cat([table[:, :prefix], rows], dim=1)
