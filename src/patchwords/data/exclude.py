"""Training without the images of a list: what `patchwords dedup` found in test sets, or any other.

The list is a CSV with the columns `path` and `bytes`, an image's key and length; other columns are
for people.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from patchwords.data.examples import DatasetSplits
from patchwords.data.listing import pluralize
from patchwords.errors import DataError


def exclude_listed_images(data: DatasetSplits, path: str) -> DatasetSplits:
    """Data without the images in the list, with a note of how many that were.

    Raises DataError where the list cannot be read, names none of the images, or all of them.
    """
    listed = read_exclusion_list(path)
    splits = {}
    for split, examples in data.splits.items():
        images = zip(examples.keys, examples.sizes.tolist(), strict=True)
        kept = np.flatnonzero([image not in listed for image in images])
        if len(kept):
            splits[split] = examples.select(kept)
    before, after = (sum(map(len, some.values())) for some in (data.splits, splits))
    if listed and before == after:
        raise DataError(
            f"--exclude {path}: none of its {pluralize(len(listed), 'image')} is in {data.source}; "
            "give the DATA that the list was made for, written in the same way"
        )
    if not after:
        raise DataError(f"--exclude {path}: it names every image of {data.source}")
    note = f"{pluralize(before - after, 'image')} left out that {path} names"
    return replace(data, splits=splits, notes=(*data.notes, note))


def read_exclusion_list(path: str) -> set[tuple[str, int]]:
    """(key, bytes) of every image in the list."""
    try:
        with Path(path).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return {(row["path"], int(row["bytes"])) for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as fault:
        reason = f"no column {fault}" if isinstance(fault, KeyError) else fault
        raise DataError(
            f"--exclude {path}: cannot be read as a list of images (path,bytes): {reason}"
        ) from fault
