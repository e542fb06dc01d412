"""Image data sets and their splits: named, labelled, not yet decoded.

Sizes: n examples. No pixels are read before they are needed, so opening a million photos
costs their names only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from patchwords.errors import DataError

TRAIN, VALIDATION, TEST, ALL = "train", "validation", "test", "all"
UNUSED = "unused"  # training images that are left out


class ImageReader(Protocol):
    """Reads the encoded image (JPEG, PNG, ... bytes) of a row. Picklable, for workers."""

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
    shards: np.ndarray | None = None  # [n] int32, shard of each image; None: not sharded
    # [n] uint64, of the encoded images, where to read one brings a whole shard from far away
    digests: np.ndarray | None = None
    # [n] of dtype FINGERPRINT (data/doctor/contents.py), where the images were looked at
    fingerprints: np.ndarray | None = None
    # row -> the encoded target, a mask file or boxes; None: the labels are the targets
    target_reader: ImageReader | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> bytes:
        """Read an encoded image; raises OSError if the file is gone or unreadable."""
        return self.reader(int(self.rows[index]))

    def select(self, indices: np.ndarray | Sequence[int]) -> ImageDataset:
        """Return the images at these positions, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(
            self,
            labels=self.labels[chosen],
            keys=[self.keys[i] for i in chosen.tolist()],
            sizes=self.sizes[chosen],
            rows=self.rows[chosen],
            shards=None if self.shards is None else self.shards[chosen],
            digests=None if self.digests is None else self.digests[chosen],
            fingerprints=None if self.fingerprints is None else self.fingerprints[chosen],
        )

    def count_per_class(self) -> np.ndarray:
        """Count the labelled images of each class -> [classes]."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.classes))


def subsample_evenly(examples: ImageDataset, count: int) -> ImageDataset:
    """Select `count` images, evenly over the list: of a folder, some of each class."""
    if count >= len(examples):
        return examples
    return examples.select(np.linspace(0, len(examples) - 1, count).round().astype(np.int64))


def evenly_spaced_indices(n: int, most: int) -> list[int]:
    """Return at most `most` positions of 0 to n - 1, the first and the last included."""
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, most))})


def concatenate_datasets(parts: Sequence[ImageDataset]) -> ImageDataset:
    """Join splits of one source into one list; they share the reader."""
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
        fingerprints=joined([part.fingerprints for part in parts]),
    )


@dataclass(frozen=True)
class DatasetSplits:
    """An opened data source: its classes and splits, and notes on what was left out.

    `splits` has either the key "all" (the source does not say which image is for what; see
    `split_dataset`) or "train" and, where the source has them, "validation" and "test".
    """

    source: str  # as the user wrote it
    kind: str  # folder, csv, parquet, shards, stream, hub, digits
    classes: tuple[str, ...]
    splits: dict[str, ImageDataset]
    notes: tuple[str, ...] = field(default=())  # lines for the user: "7 files are not images"
    unused: ImageDataset | None = None  # what `subsample_training_images` has left out of train

    @property
    def parts(self) -> dict[str, ImageDataset]:
        """All images by split, the unused ones included."""
        return self.splits if self.unused is None else {**self.splits, UNUSED: self.unused}


# Listings: what a source lists becomes splits; names become labels.


SPLIT_ALIASES = {  # usual names of splits -> ours
    "train": TRAIN,
    "training": TRAIN,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "dev": VALIDATION,
    "test": TEST,
    "testing": TEST,
}


@dataclass
class Listing:
    """The images of one split while they are collected: parallel lists."""

    keys: list[str] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)  # class names; None = no label
    bytes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, key: str, name: str | None, size: int, row: int) -> None:
        self.keys.append(key)
        self.names.append(name)
        self.bytes.append(size)
        self.rows.append(row)


def build_dataset_splits(
    source: str,
    kind: str,
    listings: Mapping[str, Listing],
    reader: ImageReader,
    *,
    notes: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    shards: np.ndarray | None = None,
    digests: np.ndarray | None = None,
) -> DatasetSplits:
    """Build splits whose labels are positions in `classes`; default: all names, sorted.

    All splits share the classes, so that one missing from a split shifts no label. `shards` and
    `digests` are by row of the reader.
    """
    if classes is None:
        names = {name for listing in listings.values() for name in listing.names}
        classes = sorted(name for name in names if name is not None)
    label: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
    label[None] = -1
    splits = {
        split: ImageDataset(
            classes=tuple(classes),
            labels=np.array([label[name] for name in listing.names], dtype=np.int64),
            keys=listing.keys,
            sizes=np.array(listing.bytes, dtype=np.int64),
            reader=reader,
            rows=np.array(listing.rows, dtype=np.int64),
            shards=None if shards is None else shards[listing.rows],
            digests=None if digests is None else digests[listing.rows],
        )
        for split, listing in listings.items()
    }
    return DatasetSplits(source, kind, tuple(classes), splits, tuple(notes))


def infer_splits_from_filenames(source: str, paths: Sequence[str]) -> list[str]:
    """Infer the split of each file from its name: `train-000.tar` is of train.

    Files of one split only are "all": tools write "train-" in front of undivided data, and the
    user who points at a single file means that file.
    """
    words = [re.split(r"[^a-z]", os.path.basename(path).lower())[0] for path in paths]
    splits = [SPLIT_ALIASES.get(word) for word in words]
    named = {split for split in splits if split}
    if len(named) < 2:
        return [ALL] * len(paths)
    stray = [path for path, split in zip(paths, splits, strict=True) if split is None]
    if stray:
        raise DataError(
            f"{source}: files are named for {abbreviate_list(sorted(named))}, but {abbreviate_list(stray)} for none; "
            "rename or move the latter"
        )
    return [split for split in splits if split]


def abbreviate_list(names: Sequence[str], most: int = 3) -> str:
    """Shorten a list of names: "a, b, c, ..."."""
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def pluralize(number: int, singular: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 file`, `1,797 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
