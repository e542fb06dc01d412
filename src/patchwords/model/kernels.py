"""Which kernel computes attention: a rule for each device, measured, beside the plain form.

Sizes: B batch, K heads, F queries, T tokens (keys), Dh head width.

On a CPU in bfloat16 two batched products with a softmax between them take half the time of
torch's fused kernel, which turns bfloat16 into float32 on the way; in float32, and on a GPU, the
fused kernel is ahead (docs/performance.md). It never holds the F x T matrix, which is why the
written-out form is left to short sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from patchwords.model.config import LONGEST_WRITTEN_OUT


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """q [B, K, F, Dh], k and v [B, K, T, Dh], bias [B, K, F, T] -> [B, K, F, Dh]; Eqs. 6-7"""
    if writes_out(q, k):
        return attend_written_out(q, k, v, bias)
    return scaled_dot_product_attention(q, k, v, bias)


def writes_out(q: Tensor, k: Tensor) -> bool:
    short = k.shape[2] <= LONGEST_WRITTEN_OUT
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and short


def attend_written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same as Eqs. 6-7 are written."""
    logits = (q * q.shape[-1] ** -0.5) @ k.mT  # [B, K, F, T]
    if bias is not None:
        logits = logits + bias
    return logits.softmax(-1).to(v.dtype) @ v
