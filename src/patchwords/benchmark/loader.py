"""Images a second that the loader gives, by the number of its workers."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from PIL import Image

from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.dataset import ALL, ImageDataset, Listing, build_dataset_splits
from patchwords.data.loader import MAX_WORKERS, ImageBatch, load_batches
from patchwords.data.preprocess import Preprocess
from patchwords.data.sampler import iterate_batch_keys
from patchwords.data.sources.digits import MemoryReader
from patchwords.errors import DataError

LOADER_BATCH_SIZE = 16  # small, so that many come in the time that there is
MIN_TIMED_BATCHES = 3  # batches that count
ENDLESS_STEPS = 2**40  # steps


@dataclass(frozen=True)
class LoaderThroughput:
    """What the loader gave with so many workers; with 0, between two steps of training."""

    workers: int
    images_per_second: float
    runs: int  # batches that were counted


def list_worker_counts(cores: int) -> list[int]:
    """0, then 1, 2, 4 and so on, up to the cores or what training would take at most."""
    most = max(1, min(cores, MAX_WORKERS))
    return [0, *(2**power for power in range(most.bit_length()) if 2**power <= most)]


def iterate_endless_batches(
    examples: ImageDataset, preprocess: Preprocess, batch: int, workers: int, pin: bool = False
) -> Iterator[ImageBatch]:
    """Batches as training sees them: in a new order each epoch, cropped and flipped at random."""
    order = iterate_batch_keys(len(examples), batch, 0, 0, ENDLESS_STEPS, shards=examples.shards)
    return load_batches(
        examples, TrainTransform(preprocess, AugmentSettings(), 0), order, workers, pin
    )


def measure_loader_throughput(
    examples: ImageDataset, preprocess: Preprocess, workers: int, seconds: float
) -> LoaderThroughput:
    """Raises DataError where no image can be read.

    The first batches are left out: workers start, and those of all of them come at once.
    """
    count = runs = 0
    with closing(
        iterate_endless_batches(examples, preprocess, LOADER_BATCH_SIZE, workers)
    ) as batches:  # type: ignore[type-var]
        for _ in range(workers + 1):
            next(batches)
        start = time.perf_counter()
        while runs < MIN_TIMED_BATCHES or time.perf_counter() < start + seconds:
            batch = next(batches)
            count += len(batch.indices)
            runs += 1
        taken = time.perf_counter() - start
    if not count:
        raise DataError(f"no image can be read; the first one: {batch.bad[0][1]}")
    return LoaderThroughput(workers, count / taken, runs)


# Photos to read when nobody names any: JPEGs made in memory, as large as ImageNet's.


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
