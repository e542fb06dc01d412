"""The digits source: scikit-learn's 1,797 handwritten digits, 8x8 pixels, 17 levels.

They are served as PNG bytes made in memory, so that everything downstream treats them as photos.
No levels are lost: 0 to 16 becomes 0 to 255.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

from patchwords.data.dataset import ALL, DatasetSplits, Listing, build_dataset_splits


@dataclass(frozen=True)
class MemoryReader:
    """Reads encoded images that are held in memory; for small sets only."""

    images: tuple[bytes, ...]

    def __call__(self, row: int) -> bytes:
        return self.images[row]


def open_digits(source: str) -> DatasetSplits:
    """Open all 1,797 digits, undivided."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # [1797, 8, 8]
    images: list[bytes] = []
    listing = Listing()
    for row, (grey, digit) in enumerate(zip(pixels, digits.target, strict=True)):
        file = io.BytesIO()
        Image.fromarray(grey).save(file, format="PNG")
        images.append(file.getvalue())
        listing.add(f"digits:{row}", str(digit), len(images[-1]), row)
    return build_dataset_splits(source, "digits", {ALL: listing}, MemoryReader(tuple(images)))
