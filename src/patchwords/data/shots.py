"""A few images of each class: what few-shot evaluation learns from.

Sizes: n labelled images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from patchwords.errors import ConfigError, DataError
from patchwords.noise import numpy_generator


def draw_shots(
    labels: np.ndarray, shots: int, seed: int, classes: Sequence[str] | None = None
) -> np.ndarray:
    """labels int [n] -> int64 [K * shots], positions of so many images of each class, by class.

    The draw of a class is a function of the seed and of the class's own images, and a smaller
    draw is the beginning of a larger one. `classes` are names for the message. Raises DataError
    where an image has no label (-1) or a class has fewer images than shots.
    """
    if shots < 1:
        raise ConfigError(f"shots {shots}: it is a number of images per class, 1 or more")
    labels = np.asarray(labels)
    bare = int((labels < 0).sum())
    if bare or not len(labels):
        raise DataError(
            f"few-shot evaluation needs labels: {bare:,} of {len(labels):,} images have none"
        )
    order = np.argsort(labels, kind="stable")
    present, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    if counts.min() < shots:
        label, fewest = int(present[counts.argmin()]), int(counts.min())
        name = repr(classes[label]) if classes else str(label)
        raise DataError(
            f"{shots} shots: class {name} has {fewest} training image{'s' * (fewest > 1)}; "
            f"use {fewest} or fewer shots, or add images"
        )
    drawn = [
        numpy_generator(seed, "fewshot", int(label)).permutation(order[start : start + count])
        for label, start, count in zip(present, starts, counts, strict=True)
    ]
    return np.concatenate([of_class[:shots] for of_class in drawn])
