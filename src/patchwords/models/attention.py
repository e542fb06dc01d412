"""Multihead self-attention: Appendix A, Eqs. 5-8, with the biases of the authors' code.

Which kernel computes it is a measured rule for each device. On a CPU in bfloat16, batched products
with a softmax between them take half the time of torch's fused kernel, which turns bfloat16 into
float32 on the way; in float32, and on a GPU, the fused kernel is faster (docs/performance.md).
`WrittenOutAttention` keeps no F x T matrix for the backward pass either: it computes the matrix
again, for a few images at a time.

Sizes: B batch, T tokens (keys), F queries, D width, K heads, Dh = D/K head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from patchwords.models.config import ViTConfig
from patchwords.models.mixers import MIXERS
from patchwords.models.mixers.mixer import Mixer
from patchwords.models.relative import RelativePositions, resize_relative_table

# Of the F x T matrices that are computed at once: they stay in the caches.
ATTENTION_CHUNK_BYTES = 4 << 20


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attend with q [B, K, F, Dh] to k, v [B, K, T, Dh], bias [B, K, F, T] (Eqs. 6-7)."""
    if bias is None and uses_written_out_attention(q):
        y: Tensor = WrittenOutAttention.apply(q, k, v)
        return y
    return scaled_dot_product_attention(q, k, v, bias)


def uses_written_out_attention(q: Tensor) -> bool:
    """Return whether `WrittenOutAttention` is faster than the fused kernel here."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16


def reference_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute Eqs. 6-7 in their plain form: the reference of both kernels."""
    logits = q @ k.mT * q.shape[-1] ** -0.5  # [B, K, F, T]
    if bias is not None:
        logits = logits + bias
    return logits.softmax(-1) @ v


class WrittenOutAttention(torch.autograd.Function):
    """`reference_attention` by batched products, forward and backward, in the type of q."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, queries, width = q.shape
        # Scaled before the product: it has fewer numbers. One pair of image and head after another.
        q, k, v = (x.reshape(batch * heads, -1, width) for x in (q * width**-0.5, k, v))
        ctx.save_for_backward(q, k, v)
        y = torch.empty_like(q)  # [B*K, F, Dh]
        for chunk in list_attention_chunks(q, k):
            torch.bmm(compute_attention_weights(q[chunk], k[chunk]), v[chunk], out=y[chunk])
        return y.view(batch, heads, queries, width)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        shape, width = dy.shape[:2], dy.shape[-1]
        dy = dy.reshape(q.shape)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for chunk in list_attention_chunks(q, k):
            a = compute_attention_weights(q[chunk], k[chunk])  # [n, F, T]
            torch.bmm(a.mT, dy[chunk], out=dv[chunk])
            da = torch.bmm(dy[chunk], v[chunk].mT)
            dlogits = torch._softmax_backward_data(da, a, -1, a.dtype)
            torch.bmm(dlogits, k[chunk], out=dq[chunk])
            torch.bmm(dlogits.mT, q[chunk], out=dk[chunk])
        dq *= width**-0.5
        return tuple(x.unflatten(0, shape) for x in (dq, dk, dv))


def compute_attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Compute the softmax of scaled q [n, F, Dh] by k [n, T, Dh]: [n, F, T]."""
    return torch.bmm(q, k.mT).softmax(-1)


def list_attention_chunks(q: Tensor, k: Tensor) -> list[slice]:
    """Split the pairs of image and head so that the matrices of a chunk fit into the caches."""
    matrix = q.shape[1] * k.shape[1] * q.element_size()
    step = max(1, ATTENTION_CHUNK_BYTES // matrix)
    return [slice(start, start + step) for start in range(0, len(q), step)]


class Attention(Mixer):
    """q, k and v come from one matrix; its 3D rows run over (q, k, v), then heads, then Dh.

    `relative` gives logits by the offsets of tokens: see relative.py. With `norm_eps` queries and
    keys of each head go through a LayerNorm (arXiv 2302.05442).
    """

    state_names: ClassVar = {"proj": "out"}
    traits: ClassVar = MIXERS["attention"].traits

    def __init__(
        self,
        width: int,
        heads: int,
        relative: nn.Module | None = None,
        norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.relative = relative
        self.q_norm: nn.LayerNorm | None = None
        self.k_norm: nn.LayerNorm | None = None
        if norm_eps is not None:
            self.q_norm, self.k_norm = (
                nn.LayerNorm(width // heads, eps=norm_eps) for _ in range(2)
            )

    @classmethod
    def build(cls, config: ViTConfig, layer: int) -> Attention:
        relative = build_relative_positions(config, config.grid, config.num_prefix_tokens)
        return cls(
            config.width, config.heads, relative, config.norm_eps if config.qk_norm else None
        )

    @classmethod
    def resize(
        cls, weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig, layer: int
    ) -> dict[str, Tensor]:
        """Fit the table of relative positions to the new grid."""
        return resize_relative_weights(weights, old.grid, new.grid, old.resize)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens [B, T, D] to q, k and v, each [B, K, T, Dh] (Eq. 5)."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, K, Dh]
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def forward(self, x: Tensor, grid: tuple[int, int], num_queries: int | None = None) -> Tensor:
        """Attend from tokens [B, T, D]; with `num_queries` = F only from the first F: [B, F, D]."""
        q, k, v = self.project(x)
        q = q[:, :, :num_queries]
        # The kernels scale q k^T but not what is added to it.
        bias = None if self.relative is None else self.relative(q * self.scale, grid)
        y = attend(q, k, v, bias)  # [B, K, T, Dh]  Eqs. 6-7
        return self.proj(y.transpose(1, 2).flatten(2))  # [B, T, D]  Eq. 8

    def weights(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Compute the A of Eq. 6, [B, K, T, T]: rows are queries and sum to 1.

        `forward` keeps no such matrix, so it is computed again.
        """
        q, k, _ = self.project(x)
        logits = q @ k.mT * self.scale
        if self.relative is not None:
            logits = logits + self.relative(q * self.scale, grid)
        return logits.softmax(-1)


def build_relative_positions(
    config: ViTConfig, grid: tuple[int, int], num_prefix_tokens: int = 0
) -> RelativePositions | None:
    """Build relative positions on a grid; None if the config has none."""
    if config.position != "relative":
        return None
    return RelativePositions(grid, num_prefix_tokens, config.head_width, config.resize)


def resize_relative_weights(
    weights: Mapping[str, Tensor], old_grid: tuple[int, int], new_grid: tuple[int, int], method: str
) -> dict[str, Tensor]:
    """Resize the `RelativePositions` in a mixer's state dict to another grid."""
    resized = dict(weights)
    if "relative.table" in weights:
        table = weights["relative.table"]
        resized["relative.table"] = resize_relative_table(table, old_grid, new_grid, method)
    return resized
