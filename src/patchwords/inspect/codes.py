"""Attention in a byte a number, for pages that hold all of it.

A row is coded as round(LEVELS sqrt(a / max a)): the square root, as rows have a few large weights
and many small ones, which a linear code would lose. Rows sum to 1, so the codes alone give them
back: a = c^2 / sum c^2. LEVELS = 100 leaves a weight within 1 % or so of the largest of its row,
and all heads of ViT-B/16 at 224 within 6 MB as compressed text, however flat the attention is.

Sizes: T tokens.
"""

from __future__ import annotations

import numpy as np

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
