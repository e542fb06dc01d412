"""What every source finds, brought to one form: names become labels, and order becomes fixed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from patchwords.data.examples import (
    ALL,
    TEST,
    TRAIN,
    VALIDATION,
    DatasetSplits,
    ImageDataset,
    ImageReader,
)
from patchwords.errors import DataError

SPLIT_ALIASES = {  # how people call the splits -> what we call them
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
    """The images of one split as found: parallel lists, an entry for each image."""

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
    """Data whose labels are positions in `classes`, by default all names in plain string order.

    All splits share the classes, so that one missing from a split shifts no label. `shards` and
    `digests` are by row of the reader.
    """
    if classes is None:
        found = {name for listing in listings.values() for name in listing.names}
        classes = sorted(name for name in found if name is not None)
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
    """The split of each file: `train-000.tar` is of train. Files of one split only are "all".

    Since tools write "train-" in front of whatever is not divided, and whoever points at a single
    file means that file.
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
    """The first names of a long list: "a, b, c, ..."."""
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def pluralize(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `1,797 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
