"""Photos and settings that the tests of the public functions share."""

from __future__ import annotations

import numpy as np
from PIL import Image

COUNTS = {"blue": 14, "green": 13, "red": 13}
TINY = {
    "model": "ViT-mu/4",
    "image_size": 16,
    "steps": 3,
    "batch_size": 8,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
}


def draw(name: str, number: int) -> Image.Image:
    """A noisy ground with one bright channel; no two are alike."""
    random = np.random.default_rng([sorted(COUNTS).index(name), number])
    pixels = random.integers(0, 90, (24, 24 + number % 3, 3), dtype=np.uint8)
    pixels[4:20, 4:20, ("red", "green", "blue").index(name)] += 150
    return Image.fromarray(pixels)
