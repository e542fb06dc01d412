"""Photos to measure with: a person's own, large ones put together of them, or made-up ones."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
from PIL import Image

SUFFIXES = {".jpg", ".jpeg"}
LARGE = (4000, 3000)  # 12 megapixels


def paths_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def read_some(folder: Path, count: int) -> list[bytes]:
    """Encoded photos, as they are."""
    paths = paths_of(folder)
    chosen = random.Random(0).sample(paths, min(count, len(paths)))
    return [path.read_bytes() for path in chosen]


def large(photos: list[bytes], count: int, size: tuple[int, int] = LARGE) -> list[bytes]:
    """Photos of 12 megapixels, each a mosaic of given ones at their own resolution.

    Enlarged, a photo would have no more detail than before, and decode faster than a real one.
    """
    pick, made = random.Random(1), []
    for _ in range(count):
        canvas, top = Image.new("RGB", size), 0
        while top < size[1]:
            left, height = 0, 0
            while left < size[0]:
                tile = Image.open(io.BytesIO(pick.choice(photos))).convert("RGB")
                canvas.paste(tile, (left, top))
                left, height = left + tile.width, max(height, tile.height)
            top += height
        made.append(encoded(canvas))
    return made


def make(folder: Path, count: int, side: int = 64) -> Path:
    """Two classes of made-up photos, for a quick try."""
    noise = np.random.default_rng(0)
    for number in range(count):
        place = folder / ("left" if number % 2 else "right")
        place.mkdir(parents=True, exist_ok=True)
        coarse = noise.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        (place / f"{number}.jpg").write_bytes(encoded(photo))
    return folder


def encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()
