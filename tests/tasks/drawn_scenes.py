"""Photos of shapes on a noisy ground, with exact masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ground", "disc", "square")
COLOURS = ((60, 60, 60), (220, 60, 50), (60, 90, 230))


def draw_scene(seed: int, height: int = 24, width: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """A disc and a square: photo uint8 [h, w, 3], mask uint8 [h, w]."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    mask = np.zeros((height, width), np.uint8)
    side = int(random.integers(8, 13))
    top, left = int(random.integers(0, height - side)), int(random.integers(0, width - side))
    mask[top : top + side, left : left + side] = 2
    y, x, radius = random.integers(6, height - 6), random.integers(6, width - 6), 6
    mask[(rows - y) ** 2 + (columns - x) ** 2 < radius**2] = 1
    photo = np.array(COLOURS, np.int64)[mask] + random.integers(-30, 31, (height, width, 3))
    return photo.clip(0, 255).astype(np.uint8), mask


def write_scenes(
    root: Path, count: int, first: int = 0, height: int = 24, width: int = 32, table: bool = True
) -> Path:
    """A folder with images/ and masks/, and classes.txt."""
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        photo, mask = draw_scene(number, height, width)
        Image.fromarray(photo).save(root / "images" / f"{number:03d}.png")
        Image.fromarray(mask).save(root / "masks" / f"{number:03d}.png")
    if table:
        (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return root
