"""What a model makes of one photo, whole: pixels, answers, and the attention of every layer.

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

# Attention in a byte a number, for pages that hold all of it.
#
# A row is coded as round(LEVELS sqrt(a / max a)): the square root, as rows have a few large weights
# and many small ones, which a linear code would lose. Rows sum to 1, so the codes alone give them
# back: a = c^2 / sum c^2. LEVELS = 100 leaves a weight within 1 % or so of the largest of its row,
# and all heads of ViT-B/16 at 224 within 6 MB as compressed text, however flat the attention is.
#
# Sizes: T tokens.


CODE_LEVELS = 100


def encode_attention(weights: np.ndarray) -> np.ndarray:
    """[..., T, T], rows that sum to 1 -> uint8 of the same shape, 0 to LEVELS"""
    weights = np.asarray(weights, dtype=np.float32)
    largest = weights.max(-1, keepdims=True)
    return np.rint(CODE_LEVELS * np.sqrt(weights / largest)).astype(np.uint8)


def decode_attention(codes: np.ndarray) -> np.ndarray:
    """uint8 [..., T, T] -> float32 of the same shape, rows that sum to 1"""
    squares = np.square(codes, dtype=np.float32)
    return squares / squares.sum(-1, keepdims=True)


HeadSelection = Literal["auto", "all", "mean"]
MAX_STORED_WEIGHTS = 7_000_000  # for which "auto" keeps every head: ViT-B/16 at 224 has 5.6 million
NUM_TOP_CLASSES = 5


@dataclass(frozen=True)
class AttentionView:
    """Attention is kept as codes of a byte: see codes.py."""

    photo: str
    model: str
    pixels: np.ndarray  # uint8 [H, W, 3], as the model sees it
    grid: tuple[int, int]  # rows and columns of patches
    prefix: int  # tokens before those of the patches: 1 with a class token
    heads: int  # that the model has
    codes: np.ndarray  # uint8 [L, K, T, T], or [L, 1, T, T]: the mean of the heads
    error: float  # of a weight, by its code, at most
    answers: tuple[tuple[str, float], ...]  # the likeliest classes; none without labels


def attention_view_shape(
    config: ViTConfig, grid: tuple[int, int], heads: HeadSelection = "auto"
) -> tuple[int, int, int]:
    """(L, heads kept, T) of a photo's attention: "auto" keeps all heads up to MOST_NUMBERS."""
    tokens = config.num_prefix_tokens + grid[0] * grid[1]
    few = config.layers * config.heads * tokens**2 <= MAX_STORED_WEIGHTS
    every = heads == "all" or (heads == "auto" and few)
    return config.layers, config.heads if every else 1, tokens


def encode_with_error(attention: Tensor, kept: int) -> tuple[np.ndarray, float]:
    """[K, T, T] -> codes [K or 1, T, T], and how far a weight that they give is off, at most"""
    weights = (
        promote_to_float32(attention)
        if kept > 1
        else promote_to_float32(attention).mean(0, keepdim=True)
    )
    told = weights.cpu().numpy()
    if not np.isfinite(told).all():
        raise DataError("the model's attention is not finite numbers: it has diverged")
    codes = encode_attention(told)
    return codes, float(np.abs(decode_attention(codes) - told).max())


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
    """A photo through a model in evaluation mode, with one layer's attention at a time as floats.

    Args:
        pixels: uint8 [H, W, C], as `preprocess` gives it.
        photo, name: of the photo and of the model, for a person.
        heads: all of them, or their mean, or as `attention_view_shape` says.

    Raises ConfigError for a model without attention, and for pixels that it cannot take, DataError
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
        codes[layer], far = encode_with_error(attention[0], kept)
        error = max(error, far)
        del attention  # before the next one comes
    answers = []
    if labels:
        scores = vit(images)[0].float().softmax(-1).cpu().numpy()  # [classes]
        answers = [
            (best["label"], best["score"]) for best in label_top_k(scores, labels, NUM_TOP_CLASSES)
        ]
    colour = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    prefix = vit.config.num_prefix_tokens
    return AttentionView(
        photo, name, colour, grid, prefix, vit.config.heads, codes, error, tuple(answers)
    )
