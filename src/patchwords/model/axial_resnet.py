"""Attention along one axis of a feature map: what AxialResNet has for 3x3 convolutions (App. D.6).

It is "position-sensitive axial attention" (Wang et al., arXiv 2003.07853) as in axial-deeplab,
lib/models/axialnet.py: queries, keys and values each meet an embedding of the offset, shared by
the heads; queries and keys are half as wide as values; no projection follows.

The source has three BatchNorms inside: on q k v, on the similarities, on the output. When it
predicts they are constant factors and offsets, which the weights, biases and tables beside them
take on, so there is none here. A GroupNorm would be another thing: its statistics come from the
whole image, and a row would see the others through them. In the place of the second, similarities
are divided by the root of the width of a query as in Eq. 6; in that of the third, the unit has
its GroupNorm after both attentions.

Sizes: B batch, C channels, h w of the feature map, n places along the axis, m lines of them, K
heads, Dv = C/K width of a value, Dq = Dv/2 of a query.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from patchwords.model.trunk_config import AXIAL_HEADS


class PositionSensitiveAxialAttention(nn.Module):
    """Each column (axis 2) or each row (axis 3) attends over itself and sees no other one.

    `relative` holds a row for every offset (query - key) from -(length - 1) to length - 1, its
    columns those for queries, keys and values. It is stretched to maps of another length.
    """

    def __init__(self, channels: int, axis: int, length: int) -> None:
        super().__init__()
        self.axis = axis
        value = channels // AXIAL_HEADS
        self.widths = (value // 2, value // 2, value)  # Dq, Dq, Dv
        self.qkv = nn.Linear(channels, 2 * channels)  # rows: heads, then (q, k, v), then width
        self.relative = nn.Parameter(torch.empty(2 * length - 1, 2 * value))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C, h, w]"""
        lines = x.permute(0, 5 - self.axis, self.axis, 1)  # [B, m, n, C]
        qkv = self.qkv(lines).unflatten(-1, (AXIAL_HEADS, -1)).transpose(2, 3)  # [B, m, K, n, 2 Dv]
        q, k, v = qkv.split(self.widths, dim=-1)
        of_q, of_k, of_v = self.offsets(x.shape[self.axis]).split(self.widths, dim=-1)
        similarity = q @ k.mT  # [B, m, K, n, n], rows are queries
        similarity = similarity + torch.einsum("bmkid,ijd->bmkij", q, of_q)
        similarity = similarity + torch.einsum("bmkjd,ijd->bmkij", k, of_k)
        weights = (similarity * self.widths[0] ** -0.5).softmax(-1)
        y = weights @ v + torch.einsum("bmkij,ijd->bmkid", weights, of_v)  # [B, m, K, n, Dv]
        y = y.transpose(2, 3).flatten(3)  # [B, m, n, C]
        return y.movedim((0, 1, 2, 3), (0, 5 - self.axis, self.axis, 1))

    def offsets(self, length: int) -> Tensor:
        """[n, n, 2 Dv], the embedding of each (query, key) on a line of this length"""
        place = torch.arange(length, device=self.relative.device)
        offset = place[:, None] - place + length - 1  # from 0 up
        return resize_axis_table(self.relative, length)[offset]


def resize_axis_table(table: Tensor, length: int) -> Tensor:
    """[offsets, d] -> [2 length - 1, d]: linear between offsets; the ends and the middle stay."""
    if table.shape[0] == 2 * length - 1:
        return table
    if length == 1:  # one offset is left, and it is 0; interpolation would take an end
        return table[table.shape[0] // 2][None]
    grown = interpolate(table.T[None], 2 * length - 1, mode="linear", align_corners=True)
    return grown[0].T
