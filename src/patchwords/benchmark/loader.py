"""Speed of the data loader by its number of workers."""

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

LOADER_BATCH_SIZE = 16  # small, so that many batches fit into the time
MIN_TIMED_BATCHES = 3  # timed batches
ENDLESS_STEPS = 2**40  # steps


@dataclass(frozen=True)
class LoaderThroughput:
    """Speed of the loader with N workers; with 0, between two training steps."""

    workers: int
    images_per_second: float
    runs: int  # timed batches


def list_worker_counts(cores: int) -> list[int]:
    """List 0, then 1, 2, 4 and so on, up to the cores or the need of training."""
    most = max(1, min(cores, MAX_WORKERS))
    return [0, *(2**power for power in range(most.bit_length()) if 2**power <= most)]


def iterate_endless_batches(
    examples: ImageDataset, preprocess: Preprocess, batch: int, workers: int, pin: bool = False
) -> Iterator[ImageBatch]:
    """Iterate over training batches: shuffled each epoch, randomly cropped and flipped."""
    order = iterate_batch_keys(len(examples), batch, 0, 0, ENDLESS_STEPS, shards=examples.shards)
    return load_batches(
        examples, TrainTransform(preprocess, AugmentSettings(), 0), order, workers, pin
    )


def measure_loader_throughput(
    examples: ImageDataset, preprocess: Preprocess, workers: int, seconds: float
) -> LoaderThroughput:
    """Measure the loader; raise DataError if no image can be read.

    The first batches are left out: workers start, and their first batches arrive together.
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


# Photos to read by default: JPEGs made in memory, as large as ImageNet's.


PHOTO_SIZE = (500, 375)  # W, H of most ImageNet photos
COLOUR_GRID_SIZE = (25, 19)  # W, H of the colours that are enlarged to an image
PIXEL_NOISE_STD = 16.0  # deviation of added noise, for files of about 100 kB, as ImageNet's
JPEG_QUALITY = 90
NUM_SYNTHETIC_PHOTOS = 16  # a few are enough, as nothing is cached


def make_synthetic_photos(count: int = NUM_SYNTHETIC_PHOTOS) -> ImageDataset:
    """Make N different unlabelled JPEGs of 500 x 375 pixels, always the same."""
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
