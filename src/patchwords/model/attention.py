"""Multihead self-attention: Appendix A, Eqs. 5-8, with the biases of the authors' code.

Sizes: B batch, T tokens, D width, K heads, Dh = D/K head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from patchwords.model.kernels import attend


class Attention(nn.Module):
    """q, k and v come from one matrix; its 3D rows run over (q, k, v), then heads, then Dh.

    `relative` gives logits by the offsets of tokens: see relative.py.
    """

    def __init__(self, width: int, heads: int, relative: nn.Module | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.relative = relative

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, D] -> q, k, v, each [B, K, T, Dh]; Eq. 5"""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, K, Dh]
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def forward(self, x: Tensor, grid: tuple[int, int], first: int | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]; with `first` = F only what the first F tokens see, [B, F, D]"""
        q, k, v = self.project(x)
        q = q[:, :, :first]
        # The kernels scale q k^T but not what is added to it.
        bias = None if self.relative is None else self.relative(q * self.scale, grid)
        y = attend(q, k, v, bias)  # [B, K, T, Dh]  Eqs. 6-7
        return self.out(y.transpose(1, 2).flatten(2))  # [B, T, D]  Eq. 8

    def weights(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, T, D] -> [B, K, T, T], the A of Eq. 6: rows are queries and sum to 1.

        `forward` need not make this matrix, and keeps none, so it is computed anew.
        """
        q, k, _ = self.project(x)
        logits = q @ k.mT * self.scale
        if self.relative is not None:
            logits = logits + self.relative(q * self.scale, grid)
        return logits.softmax(-1)
