"""Local attention: each patch sees a window of patches (Ramachandran et al., arXiv 1906.05909).

Sizes: B batch, N = h*w patches, D width, K heads, Dh head width, W window.

The window is cut off at the borders of the grid. Queries are taken in blocks of W x W patches,
which between them see the (2W - 1) x (2W - 1) places around the block; a mask leaves each its own
window. So the work grows with N W^2, and no patch's window is copied for it alone, which would
take W^2 times the memory of the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from patchwords.models.attention import Attention
from patchwords.models.checks import check_window
from patchwords.models.config import ViTConfig
from patchwords.models.mixers import DEFAULT_WINDOW, MIXERS


class WindowRelativePositions(nn.Module):
    """An embedding for each offset within a window: half of it by row, half of it by column.

    As in relative.py the heads share it, and the offset is that of the query from the key.
    """

    def __init__(self, window: int, head_width: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(window, head_width // 2))  # row: offset + radius
        self.columns = nn.Parameter(torch.zeros(window, head_width // 2))

    def forward(self, q: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """[..., Q, Dh], places [Q, 2], [S, 2] -> q . r, [..., Q, S], of use within the window"""
        radius = self.rows.shape[0] // 2
        offsets = (queries[:, None] - keys).clamp(-radius, radius) + radius  # [Q, S, 2]
        row, column = offsets.expand(*q.shape[:-2], -1, -1, -1).unbind(-1)  # [..., Q, S]
        by_row, by_column = q.chunk(2, dim=-1)  # [..., Q, Dh/2]
        of_rows = (by_row @ self.rows.mT).gather(-1, row)
        of_columns = (by_column @ self.columns.mT).gather(-1, column)
        return of_rows + of_columns


class LocalAttention(Attention):
    """Raises ConfigError for a grid in which the window has no place."""

    traits: ClassVar = MIXERS["local"].traits

    def __init__(
        self, width: int, heads: int, window: int, relative: WindowRelativePositions | None = None
    ) -> None:
        super().__init__(width, heads, relative)
        self.window = window

    @classmethod
    def build(cls, config: ViTConfig, layer: int) -> LocalAttention:
        window = config.window or DEFAULT_WINDOW
        relative = None
        if config.position == "relative":
            relative = WindowRelativePositions(window, config.head_width)
        return cls(config.width, config.heads, window, relative)

    @classmethod
    def resize(
        cls, weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig, layer: int
    ) -> dict[str, Tensor]:
        """The weights as they are: offsets within the window are those of any grid."""
        return dict(weights)

    def forward(self, x: Tensor, grid: tuple[int, int], num_queries: int | None = None) -> Tensor:
        """[B, N, D] -> [B, N, D] or [B, F, D]"""
        check_window(self.window, grid)
        q, k, v = self.project(x)  # [B, K, N, Dh]
        window, radius = self.window, self.window // 2
        inner = torch.arange(window, device=x.device)
        outer = torch.arange(-radius, window + radius, device=x.device)
        queries = torch.cartesian_prod(inner, inner)  # [W^2, 2], (y, x) from the block's corner
        keys = torch.cartesian_prod(outer, outer)  # [(2W - 1)^2, 2]
        q = split_into_blocks(q, grid, window, margin=0)  # [B*K, blocks, W^2, Dh]
        k, v = (split_into_blocks(z, grid, window, margin=radius) for z in (k, v))  # (2W - 1)^2
        mask = block_mask(queries, keys, grid, window)  # [blocks, W^2, (2W - 1)^2]
        if self.relative is not None:
            bias = self.relative(q * self.scale, queries, keys)
            mask = bias.masked_fill(~mask, -torch.inf)
        y = scaled_dot_product_attention(q, k, v, mask)  # [B*K, blocks, W^2, Dh]
        y = merge_blocks(y, grid, window).unflatten(0, (-1, self.heads))  # [B, K, N, Dh]
        return self.proj(y.transpose(1, 2).flatten(2))[:, :num_queries]

    def weights(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, D] -> [B, K, N, N], zero outside the query's window"""
        check_window(self.window, grid)
        q, k, _ = self.project(x)
        places = torch.cartesian_prod(*(torch.arange(side, device=x.device) for side in grid))
        logits = q @ k.mT * self.scale
        if self.relative is not None:
            logits = logits + self.relative(q * self.scale, places, places)
        near = window_mask(places, places, self.window)
        return logits.masked_fill(~near, -torch.inf).softmax(-1)

    def extra_repr(self) -> str:
        return f"window={self.window}"


def window_mask(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """Places [Q, 2], [S, 2] -> [Q, S]; True where the key lies in the query's window"""
    return ((queries[:, None] - keys).abs() <= window // 2).all(-1)


def block_mask(queries: Tensor, keys: Tensor, grid: tuple[int, int], window: int) -> Tensor:
    """-> [blocks, W^2, (2W - 1)^2]; True where a block's query sees a place around it"""
    corners = torch.cartesian_prod(
        *(torch.arange(0, side, window, device=keys.device) for side in grid)
    )  # [blocks, 2]
    at = corners[:, None] + keys  # [blocks, (2W - 1)^2, 2]
    inside = ((at >= 0) & (at < torch.tensor(grid, device=keys.device))).all(-1)
    # Queries beyond the border, which fill up the last blocks and are cut off again, see at
    # least themselves: not every kernel has an answer for a softmax over nothing.
    itself = window_mask(queries, keys, 1)
    return window_mask(queries, keys, window) & inside[:, None] | itself


def split_into_blocks(z: Tensor, grid: tuple[int, int], side: int, margin: int) -> Tensor:
    """[B, K, N, Dh] -> [B*K, blocks, (side + 2 margin)^2, Dh], zeros beyond the border"""
    behind = [margin - length % -side for length in grid]  # up to the next multiple of `side`
    z = z.flatten(0, 1).unflatten(1, grid)  # [B*K, h, w, Dh]
    z = pad(z, (0, 0, margin, behind[1], margin, behind[0]))
    size = side + 2 * margin
    z = z.unfold(1, size, side).unfold(2, size, side)  # [B*K, h/side, w/side, Dh, size, size]
    return z.permute(0, 1, 2, 4, 5, 3).flatten(3, 4).flatten(1, 2)


def merge_blocks(z: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """[B*K, blocks, side^2, Dh] -> [B*K, N, Dh], the inverse of `split_into_blocks` without a margin"""
    down, across = (-(-length // side) for length in grid)
    z = z.unflatten(2, (side, side)).unflatten(1, (down, across))  # [B*K, down, across, s, s, Dh]
    z = z.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [B*K, down*side, across*side, Dh]
    return z[:, : grid[0], : grid[1]].flatten(1, 2)
