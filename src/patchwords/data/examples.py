"""What every data source gives: labelled images, named, counted and not yet decoded.

Sizes: n examples. No pixels are read before somebody asks for them, so opening a million photos
costs their names only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

TRAIN, VALIDATION, TEST, ALL = "train", "validation", "test", "all"
UNUSED = "unused"  # training images that nobody learns from


class ImageReader(Protocol):
    """row -> the encoded image (JPEG, PNG, ... bytes). Picklable, so that workers can have it."""

    def __call__(self, row: int) -> bytes: ...


@dataclass(frozen=True)
class ImageDataset:
    """A list of labelled images.

    `select` makes a smaller list that shares the reader.
    """

    classes: tuple[str, ...]  # label -> name
    labels: np.ndarray  # [n] int64, index into classes; -1 = no label
    keys: Sequence[str]  # [n] what names the image to a person: a relative path, "x.parquet:17"
    sizes: np.ndarray  # [n] int64, bytes of the encoded image: with the key they tell it apart
    reader: ImageReader
    rows: np.ndarray  # [n] int64, where the reader finds the image
    shards: np.ndarray | None = None  # [n] int32, of which file each is a piece; None: of none
    # [n] uint64, of the encoded images, where to read one brings a whole shard from far away
    digests: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> bytes:
        """The encoded image; raises OSError where the file is gone or cannot be read."""
        return self.reader(int(self.rows[index]))

    def select(self, indices: np.ndarray | Sequence[int]) -> ImageDataset:
        """The examples at these positions, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(
            self,
            labels=self.labels[chosen],
            keys=[self.keys[i] for i in chosen.tolist()],
            sizes=self.sizes[chosen],
            rows=self.rows[chosen],
            shards=None if self.shards is None else self.shards[chosen],
            digests=None if self.digests is None else self.digests[chosen],
        )

    def count_per_class(self) -> np.ndarray:
        """[classes] images of each class; unlabelled ones are in none."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.classes))


def subsample_evenly(examples: ImageDataset, count: int) -> ImageDataset:
    """So many of them, evenly over the list: of a folder by classes, some of each class."""
    if count >= len(examples):
        return examples
    return examples.select(np.linspace(0, len(examples) - 1, count).round().astype(np.int64))


def evenly_spaced_indices(n: int, most: int) -> list[int]:
    """At most so many of the places 0 to n - 1, the first and the last among them"""
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, most))})


def concatenate_datasets(parts: Sequence[ImageDataset]) -> ImageDataset:
    """Splits of one source as one list; they share the reader."""
    assert len({id(part.reader) for part in parts}) == 1

    def joined(arrays: list[np.ndarray | None]) -> np.ndarray | None:
        there = [array for array in arrays if array is not None]
        return np.concatenate(there) if there else None

    return replace(
        parts[0],
        labels=np.concatenate([part.labels for part in parts]),
        keys=[key for part in parts for key in part.keys],
        sizes=np.concatenate([part.sizes for part in parts]),
        rows=np.concatenate([part.rows for part in parts]),
        shards=joined([part.shards for part in parts]),
        digests=joined([part.digests for part in parts]),
    )


@dataclass(frozen=True)
class DatasetSplits:
    """An opened data source: its classes, its splits, and what was seen and left aside.

    `splits` has either the key "all" (the source does not say which image is for what; see
    `split.divide`) or "train" and, where the source has them, "validation" and "test".
    """

    source: str  # as the user wrote it
    kind: str  # folder, csv, parquet, shards, stream, hub, digits
    classes: tuple[str, ...]
    splits: dict[str, ImageDataset]
    notes: tuple[str, ...] = field(default=())  # lines for a person: "7 files are not images"
    unused: ImageDataset | None = None  # what `subset.keep_training_images` has left of train

    @property
    def parts(self) -> dict[str, ImageDataset]:
        """All images, by split; those that are unused, too."""
        return self.splits if self.unused is None else {**self.splits, UNUSED: self.unused}
