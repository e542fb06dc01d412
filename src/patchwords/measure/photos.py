"""Photos to read when nobody names any: JPEGs made in memory, as large as ImageNet's."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from patchwords.data.digits import MemoryReader
from patchwords.data.examples import ALL, ImageDataset
from patchwords.data.listing import Listing, build_dataset_splits

PHOTO_SIZE = (500, 375)  # W, H: what most of ImageNet's photos have
COLOUR_GRID_SIZE = (25, 19)  # W, H of the colours that are blown up to a picture
PIXEL_NOISE_STD = (
    16.0  # deviation of the noise on top: with it a file has some 100 kB, as ImageNet's
)
JPEG_QUALITY = 90
NUM_SYNTHETIC_PHOTOS = 16  # a few are enough: each is decoded anew every time


def make_synthetic_photos(count: int = NUM_SYNTHETIC_PHOTOS) -> ImageDataset:
    """So many different JPEGs of 500 x 375 pixels, unlabelled; always the same."""
    random = np.random.default_rng(0)
    files: list[bytes] = []
    listing = Listing()
    for number in range(count):
        colours = random.integers(
            256, size=(COLOUR_GRID_SIZE[1], COLOUR_GRID_SIZE[0], 3), dtype=np.uint8
        )
        smooth = Image.fromarray(colours).resize(PHOTO_SIZE, Image.Resampling.BICUBIC)
        grain = random.normal(0, PIXEL_NOISE_STD, size=(PHOTO_SIZE[1], PHOTO_SIZE[0], 3))
        pixels = np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)  # [H, W, C]
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="JPEG", quality=JPEG_QUALITY)
        files.append(file.getvalue())
        listing.add(f"made:{number}", None, len(files[-1]), number)
    made = build_dataset_splits("made", "folder", {ALL: listing}, MemoryReader(tuple(files)))
    return made.splits[ALL]
