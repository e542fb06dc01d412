"""One photo as a model sees it: pixels, answers and the attention of every layer.

Attention is stored in one byte per weight, for pages that hold all of it. A row is coded as
round(CODE_LEVELS sqrt(a / max a)): the square root, as rows have a few large weights and many small
ones, which a linear code would lose. Rows sum to 1, so the codes alone give them back:
a = c^2 / sum c^2. CODE_LEVELS = 100 keeps a weight within about 1 % of the largest of its row, and
all heads of ViT-B/16 at 224 within 6 MB of compressed text, however flat the attention is.

Sizes: C channels, H W image, K heads, L layers, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.errors import DataError
from patchwords.interpret.attention import promote_to_float32, require_attention
from patchwords.models.build import Model
from patchwords.models.config import ViTConfig
from patchwords.weights.pretrained import label_top_k

CODE_LEVELS = 100
HeadSelection = Literal["auto", "all", "mean"]
MAX_STORED_WEIGHTS = 7_000_000  # for which "auto" keeps every head: ViT-B/16 at 224 has 5.6 million
NUM_TOP_CLASSES = 5


def encode_attention(weights: np.ndarray) -> np.ndarray:
    """Encode attention [..., T, T], rows that sum to 1, as uint8 of 0 to CODE_LEVELS."""
    weights = np.asarray(weights, dtype=np.float32)
    largest = weights.max(-1, keepdims=True)
    return np.rint(CODE_LEVELS * np.sqrt(weights / largest)).astype(np.uint8)


def decode_attention(codes: np.ndarray) -> np.ndarray:
    """Decode uint8 [..., T, T] to float32 attention, rows that sum to 1."""
    squares = np.square(codes, dtype=np.float32)
    return squares / squares.sum(-1, keepdims=True)


@dataclass(frozen=True)
class AttentionView:
    """All that the explorer shows of one photo through one model."""

    photo: str
    model: str
    pixels: np.ndarray  # uint8 [H, W, 3], as the model sees it
    grid: tuple[int, int]  # rows and columns of patches
    prefix: int  # tokens before those of the patches: 1 with a class token
    heads: int  # that the model has
    codes: np.ndarray  # uint8 [L, K, T, T], or [L, 1, T, T]: the mean of the heads
    error: float  # largest difference between a decoded and a true weight
    answers: tuple[tuple[str, float], ...]  # the most likely classes; empty without labels


def attention_view_shape(
    config: ViTConfig, grid: tuple[int, int], heads: HeadSelection = "auto"
) -> tuple[int, int, int]:
    """Return (L, heads kept, T) of a photo's attention.

    "auto" keeps all heads up to MAX_STORED_WEIGHTS weights.
    """
    tokens = config.num_prefix_tokens + grid[0] * grid[1]
    fits = config.layers * config.heads * tokens**2 <= MAX_STORED_WEIGHTS
    keep_all = heads == "all" or (heads == "auto" and fits)
    return config.layers, config.heads if keep_all else 1, tokens


def encode_with_error(attention: Tensor, kept: int) -> tuple[np.ndarray, float]:
    """Encode a layer's attention [K, T, T]; return codes [K or 1, T, T] and the largest error."""
    attention = promote_to_float32(attention)
    weights = (attention if kept > 1 else attention.mean(0, keepdim=True)).cpu().numpy()
    if not np.isfinite(weights).all():
        raise DataError("the model's attention is not finite: its weights have diverged")
    codes = encode_attention(weights)
    return codes, float(np.abs(decode_attention(codes) - weights).max())


@torch.inference_mode()
def build_attention_view(
    model: Model,
    preprocess: Preprocess,
    pixels: np.ndarray,
    *,
    photo: str,
    name: str,
    labels: Sequence[str] = (),
    heads: HeadSelection = "auto",
) -> AttentionView:
    """Run a photo through a model in evaluation mode and encode its attention.

    Args:
        pixels: uint8 [H, W, C], as `preprocess` returns it.
        photo, name: titles of the photo and of the model.
        heads: all, their mean, or "auto": see `attention_view_shape`.

    Raises ConfigError for a model without attention or for pixels that it cannot take, DataError
    where attention is not finite.
    """
    vit = require_attention(model)
    device = next(vit.parameters()).device
    batch = torch.from_numpy(pixels[None].copy()).permute(0, 3, 1, 2).to(device)  # [1, C, H, W]
    images = preprocess.normalise(batch)
    grid = vit.grid(images)
    layers, kept, tokens = attention_view_shape(vit.config, grid, heads)
    codes = np.empty((layers, kept, tokens, tokens), np.uint8)
    error = 0.0
    for layer, attention in vit.attention(images):  # [1, K, T, T]
        codes[layer], layer_error = encode_with_error(attention[0], kept)
        error = max(error, layer_error)
        del attention  # before the next layer's is computed
    answers = []
    if labels:
        scores = vit(images)[0].float().softmax(-1).cpu().numpy()  # [classes]
        top = label_top_k(scores, labels, NUM_TOP_CLASSES)
        answers = [(row["label"], row["score"]) for row in top]
    colour = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    prefix = vit.config.num_prefix_tokens
    return AttentionView(
        photo, name, colour, grid, prefix, vit.config.heads, codes, error, tuple(answers)
    )
