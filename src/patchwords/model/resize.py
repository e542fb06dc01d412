"""Tables of positions on other grids than they were learned on: Sec. 3.2.

Sizes: n tables, h w grid of patches, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from patchwords.errors import ConfigError, did_you_mean

# The authors' scipy.ndimage.zoom(order=1) keeps the corner patches in place, which is what torch
# calls align_corners=True. timm's loaders do the second, transformers the third.
RESIZE_METHODS: dict[str, dict[str, Any]] = {
    "bilinear-corners": {"mode": "bilinear", "align_corners": True},
    "bicubic-antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},
    "bicubic": {"mode": "bicubic", "align_corners": False},
}


def resize_position_grid(table: Tensor, grid: tuple[int, int], method: str) -> Tensor:
    """[n, h, w, D] -> [n, h', w', D]; an equal grid gives the table itself.

    Raises ConfigError for a method that is none of METHODS.
    """
    if method not in RESIZE_METHODS:
        raise ConfigError(f"unknown resize {method!r}{did_you_mean(method, RESIZE_METHODS)}")
    if table.shape[1:3] == grid:
        return table
    # Half precisions are resized in float32: not every kernel has them, and they would round twice.
    dtype = torch.promote_types(table.dtype, torch.float32)
    maps = table.to(dtype).permute(0, 3, 1, 2)  # [n, D, h, w]
    maps = interpolate(maps, size=grid, **RESIZE_METHODS[method])  # [n, D, h', w']
    return maps.permute(0, 2, 3, 1).to(table.dtype)  # [n, h', w', D]


def resize_position_line(table: Tensor, length: int, method: str) -> Tensor:
    """[n, l, D] -> [n, l', D], as a grid of one column is resized."""
    return resize_position_grid(table[:, :, None], (length, 1), method)[:, :, 0]
