"""Relative positions: Appendix D.4, "1-dimensional relative attention".

Sizes: B batch, N = h*w patches, T tokens, K heads, Dh head width.

For a query at place p_q of the raster and a key at p_k, the offset p_q - p_k has an embedding r,
and q . r is added to q . k before the softmax. As in Shaw et al. (arXiv 1803.02155) every layer
has its own table and its heads share it, and the sum is divided by sqrt(Dh). The paper leaves all
three open, and the class token, which has no place in the raster: it gets embeddings of its own.

Tables of positions of any kind are resized here, too (Sec. 3.2): n tables of an h x w grid.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from patchwords.errors import ConfigError, did_you_mean

# The authors' scipy.ndimage.zoom(order=1) keeps the corner patches in place, which is what torch
# calls align_corners=True. timm's loaders do the second, transformers the third. DINO and DINOv2
# without registers do the fourth: by a factor of (h' + 0.1) / h, not to a size.
RESIZE_METHODS: dict[str, dict[str, Any]] = {
    "bilinear-corners": {"mode": "bilinear", "align_corners": True},
    "bicubic-antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},
    "bicubic": {"mode": "bicubic", "align_corners": False},
    "bicubic-offset": {"mode": "bicubic", "align_corners": False},
}
RESIZE_OFFSET = 0.1  # of a patch, in the factors of "bicubic-offset"


def resize_position_grid(table: Tensor, grid: tuple[int, int], method: str) -> Tensor:
    """Resize a table [n, h, w, D] to [n, h', w', D]; for an equal grid return it as it is.

    Raises ConfigError for a method that is not in RESIZE_METHODS.
    """
    if method not in RESIZE_METHODS:
        raise ConfigError(f"unknown resize {method!r}{did_you_mean(method, RESIZE_METHODS)}")
    if table.shape[1:3] == grid:
        return table
    # Half precisions are resized in float32: not every kernel has them, and they would round twice.
    dtype = torch.promote_types(table.dtype, torch.float32)
    maps = table.to(dtype).permute(0, 3, 1, 2)  # [n, D, h, w]
    if method == "bicubic-offset":
        factors = tuple(
            (new + RESIZE_OFFSET) / old for new, old in zip(grid, maps.shape[2:], strict=True)
        )
        maps = interpolate(maps, scale_factor=factors, **RESIZE_METHODS[method])
    else:
        maps = interpolate(maps, size=grid, **RESIZE_METHODS[method])  # [n, D, h', w']
    return maps.permute(0, 2, 3, 1).to(table.dtype)  # [n, h', w', D]


def resize_position_line(table: Tensor, length: int, method: str) -> Tensor:
    """Resize a table [n, l, D] to [n, l', D], as a grid of one column."""
    return resize_position_grid(table[:, :, None], (length, 1), method)[:, :, 0]


class RelativePositions(nn.Module):
    """An embedding for each offset on a grid; a line is a grid of one row."""

    def __init__(self, grid: tuple[int, int], prefix: int, head_width: int, resize: str) -> None:
        super().__init__()
        self.grid = grid
        self.resize = resize
        patches = grid[0] * grid[1]
        # Row N - 1 + offset: from the first patch looking at the last, to the last at the first.
        self.table = nn.Parameter(torch.zeros(2 * patches - 1, head_width))
        self.class_token = None
        if prefix:  # class token to patch, patch to class token, class token to itself
            self.class_token = nn.Parameter(torch.zeros(3, head_width))

    def forward(self, q: Tensor, grid: tuple[int, int]) -> Tensor:
        """Compute q . r, [B, K, F, T], for queries [B, K, F, Dh] of the first F tokens."""
        embeddings = resize_relative_table(self.table, self.grid, grid, self.resize)  # [2N - 1, Dh]
        index = relative_position_index(grid[0] * grid[1], q.device)  # [N, N]
        if self.class_token is not None:
            index = prepend_class_token_index(index, first=embeddings.shape[0])  # [T, T]
            embeddings = torch.cat([embeddings, self.class_token])  # [2N + 2, Dh]
        # Products with all embeddings, then each pair's own: with embeddings gathered first,
        # there would be T x T of them, each of Dh numbers.
        products = q @ embeddings.mT  # [B, K, F, 2N - 1 or 2N + 2]
        return products.gather(-1, index[: q.shape[2]].expand(*q.shape[:2], -1, -1))

    def extra_repr(self) -> str:
        return f"grid={self.grid}, resize={self.resize!r}"


def relative_position_index(patches: int, device: torch.device | None = None) -> Tensor:
    """Index the row of the table for each (query, key): [N, N]."""
    place = torch.arange(patches, device=device)
    return place[:, None] - place + patches - 1


def prepend_class_token_index(index: Tensor, first: int) -> Tensor:
    """Add the class token's three rows, from `first`: [N, N] becomes [N + 1, N + 1]."""
    patches = index.shape[0]
    to_patches = index.new_full((1, patches), first)
    to_class = index.new_full((patches, 1), first + 1)
    to_itself = index.new_full((1, 1), first + 2)
    top = torch.cat([to_itself, to_patches], dim=1)
    return torch.cat([top, torch.cat([to_class, index], dim=1)])


def resize_relative_table(
    table: Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int], method: str
) -> Tensor:
    """Resize a table [2N - 1, Dh] to [2N' - 1, Dh]; for equal grids return it as it is.

    The raster offset dy*w + dx means one thing on a grid of w columns and another on w' columns.
    So the table is spread over (dy, dx), resized there, and folded back.
    """
    if old_grid == new_grid:
        return table
    (rows, columns), (new_rows, new_columns) = old_grid, new_grid
    dy = torch.arange(1 - rows, rows, device=table.device)[:, None]  # [2h - 1, 1]
    dx = torch.arange(1 - columns, columns, device=table.device)  # [2w - 1]
    # In float32 at least: a half precision would round at each step.
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    spread = wide[dy * columns + dx + rows * columns - 1]  # [2h - 1, 2w - 1, Dh]
    resized = resize_position_grid(spread[None], (2 * new_rows - 1, 2 * new_columns - 1), method)[0]
    return fold_relative_table(resized).to(table.dtype)


def fold_relative_table(spread: Tensor) -> Tensor:
    """Fold a table over (dy, dx) to raster offsets dy*w + dx: [2N - 1, Dh].

    The table is [2h - 1, 2w - 1, Dh].

    One raster offset is up to two pairs: (dy, dx) with dx from 0 up, and (dy + 1, dx - w). It
    gets their mean, weighted by how many (query, key) pairs of patches have each.
    """
    rows, columns = (spread.shape[0] + 1) // 2, (spread.shape[1] + 1) // 2
    offset = torch.arange(1 - rows * columns, rows * columns, device=spread.device)  # [2N - 1]
    dy = offset.div(columns, rounding_mode="floor")
    dx = offset - dy * columns  # 0 .. w - 1
    count = (rows - dy.abs()) * (columns - dx)
    count_below = (rows - (dy + 1).abs()) * dx
    share = (count_below.to(spread.dtype) / (count + count_below))[:, None]  # [2N - 1, 1]
    # A pair that is off the grid has the count 0; its index only has to be one that exists.
    one = spread[(dy + rows - 1).clamp(min=0), dx + columns - 1]  # [2N - 1, Dh]
    below = spread[(dy + rows).clamp(max=2 * rows - 2), (dx - 1).clamp(min=0)]
    return torch.lerp(one, below, share)  # exactly one of them where the other does not count
