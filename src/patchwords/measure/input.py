"""Images a second that the loader gives, by the number of its workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from patchwords.data.augment import Augment, TrainView
from patchwords.data.examples import Examples
from patchwords.data.loader import MOST_WORKERS, Batch, train_batches
from patchwords.data.plan import train_plan
from patchwords.data.preprocess import Preprocess
from patchwords.errors import DataError

BATCH = 16  # small, so that many come in the time that there is
LEAST = 3  # batches that count
ENDLESS = 2**40  # steps


@dataclass(frozen=True)
class InputSpeed:
    """What the loader gave with so many workers; with 0, between two steps of training."""

    workers: int
    images_per_second: float
    runs: int  # batches that were counted


def worker_counts(cores: int) -> list[int]:
    """0, then 1, 2, 4 and so on, up to the cores or what training would take at most."""
    most = max(1, min(cores, MOST_WORKERS))
    return [0, *(2**power for power in range(most.bit_length()) if 2**power <= most)]


def endless(
    examples: Examples, preprocess: Preprocess, batch: int, workers: int, pin: bool = False
) -> Iterator[Batch]:
    """Batches as training sees them: in a new order each epoch, cropped and flipped at random."""
    order = train_plan(len(examples), batch, 0, 0, ENDLESS, shards=examples.shards)
    return train_batches(examples, TrainView(preprocess, Augment(), 0), order, workers, pin)


def measure_input(
    examples: Examples, preprocess: Preprocess, workers: int, seconds: float
) -> InputSpeed:
    """Raises DataError where no image can be read.

    The first batches are left out: workers start, and those of all of them come at once.
    """
    count = runs = 0
    with closing(endless(examples, preprocess, BATCH, workers)) as batches:  # type: ignore[type-var]
        for _ in range(workers + 1):
            next(batches)
        start = time.perf_counter()
        while runs < LEAST or time.perf_counter() < start + seconds:
            batch = next(batches)
            count += len(batch.indices)
            runs += 1
        taken = time.perf_counter() - start
    if not count:
        raise DataError(f"no image can be read; the first one: {batch.bad[0][1]}")
    return InputSpeed(workers, count / taken, runs)
