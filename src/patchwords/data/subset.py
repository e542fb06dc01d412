"""Learning from fewer images than there are: random subsets, each among those of a larger one.

As in the paper's Figure 4. All training images stand in one order, a function of the seed and the
images alone, and the first so many are learned from. Within a class it is that of the draw in
`split.py`; classes take turns, so that each has about its share of any number of first ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from patchwords.data.examples import TRAIN, DatasetSplits, ImageDataset
from patchwords.data.split import rank_by_hash
from patchwords.errors import ConfigError, DataError
from patchwords.noise import derive_seed

NOISE_LIMIT = 2**63  # noise is below this


def subsample_training_images(
    data: DatasetSplits, number: int, seed: int, every_class: bool = True
) -> DatasetSplits:
    """Data that is divided, with so many images in train; the others are `unused`.

    Raises ConfigError where there are not so many, and DataError where a class of train is left
    without an image, unless `every_class` is False.
    """
    train = data.splits[TRAIN]
    if number > len(train):
        raise ConfigError(
            f"--train-images {number:,}: {data.source} has {len(train):,} to train on, after what "
            "is held out; ask for fewer, or leave it out"
        )
    order = interleave_classes(train, seed)
    kept = train.select(np.sort(order[:number]))
    lost = np.flatnonzero(train.count_per_class() * (kept.count_per_class() == 0))
    if every_class and len(lost):
        raise DataError(
            f"--train-images {number:,}: none of them is of class {data.classes[int(lost[0])]!r}; "
            "ask for more, or keep other classes only with --classes"
        )
    note = f"learning from {number:,} of {len(train):,} training images (--train-images)"
    return replace(
        data,
        splits={**data.splits, TRAIN: kept},
        unused=train.select(np.sort(order[number:])),
        notes=(*data.notes, note),
    )


def interleave_classes(train: ImageDataset, seed: int) -> np.ndarray:
    """[n] int64: the order in which training images are taken.

    The k-th of a class of c images, from 0, has its turn when (k + u) / c of all are taken. u, from
    0 to 1, is the class's own: else all small classes would have their first turn at once.
    """
    ranks = rank_by_hash(train, seed)
    by_class = np.lexsort((ranks, train.labels))
    present, starts, counts = np.unique(
        train.labels[by_class], return_index=True, return_counts=True
    )
    names = [train.classes[label] if label >= 0 else "" for label in present.tolist()]
    first = np.array([derive_seed(seed, "subset", name) / NOISE_LIMIT for name in names])
    in_class = np.arange(len(train)) - np.repeat(starts, counts)
    turn = np.empty(len(train))
    turn[by_class] = (in_class + np.repeat(first, counts)) / np.repeat(counts, counts)
    return np.lexsort((ranks, turn))
