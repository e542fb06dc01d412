"""Views for tests of the explorer: random attention, and a photo to each."""

from __future__ import annotations

import numpy as np

from patchwords.interpret.view import AttentionView, encode_attention


def plant(
    photo: str = "daisy.jpg",
    model: str = "tiny",
    *,
    layers: int = 3,
    heads: int = 2,
    grid: tuple[int, int] = (3, 5),
    prefix: int = 1,
    patch: int = 4,
    spread: float = 1.0,
    kept: int | None = None,
    seed: int = 0,
) -> AttentionView:
    """Logits are normal, of this deviation: peaked as trained ones are, and no two alike."""
    rng = np.random.default_rng(seed)
    tokens = prefix + grid[0] * grid[1]
    codes = []
    for _ in range(layers):
        a = np.exp(rng.normal(0, spread, (kept or heads, tokens, tokens)).astype(np.float32))
        codes.append(encode_attention(a / a.sum(-1, keepdims=True)))
    pixels = rng.integers(0, 256, (grid[0] * patch, grid[1] * patch, 3), dtype=np.uint8)
    answers = (("daisy", 0.75), ("<b>tulip</b>", 0.2))
    return AttentionView(photo, model, pixels, grid, prefix, heads, np.stack(codes), 0.004, answers)
