"""The training images that are nearest to a photo in a model's features: by the cosine.

Sizes: n photos, N images searched, R representation, k nearest.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from patchwords.data.examples import ALL, TRAIN, DatasetSplits, ImageDataset
from patchwords.errors import DataError
from patchwords.evaluate.frozen import require_finite_features
from patchwords.evaluate.neighbours import NeighbourIndex
from patchwords.evaluate.train_test import is_run_data, split_as_recorded
from patchwords.noise import numpy_generator

MAX_SEARCHED_IMAGES = 20_000  # of more so many are drawn
NUM_RANDOM_PAIRS = 2_000  # of a median by chance


def find_nearest_images(
    features: np.ndarray, searched: np.ndarray, k: int, device: torch.device | str = "cpu"
) -> tuple[np.ndarray, np.ndarray]:
    """[n, R] and [N, R] -> cosines float32 [n, k], falling, and places int64 [n, k] in N.

    The search is exact. Of fewer than k images it gives all. Raises DataError for features that
    are not finite.
    """
    for values in (features, searched):
        require_finite_features(values)
    nobody = np.zeros(len(searched), dtype=np.int64)  # no label is asked for
    cosines, places = NeighbourIndex(searched, nobody, device).nearest(features, k)
    return cosines.numpy(), places.numpy()


def median_random_similarity(searched: np.ndarray) -> float | None:
    """[N, R] -> the median cosine of two different images, over 2,000 pairs; None for one image.

    Features of many models all lie in one narrow cone: a high cosine alone says little.
    """
    count = len(searched)
    if count < 2:
        return None
    random = numpy_generator(0, "pairs of images")
    one = random.integers(0, count, NUM_RANDOM_PAIRS)
    other = (one + random.integers(1, count, NUM_RANDOM_PAIRS)) % count  # never the same
    return float(
        np.median((normalise_rows(searched[one]) * normalise_rows(searched[other])).sum(axis=1))
    )


def normalise_rows(values: np.ndarray) -> np.ndarray:
    """[n, R] -> float32 [n, R] of length 1"""
    values = np.asarray(values, dtype=np.float32)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.maximum(lengths, np.finfo(np.float32).tiny)


def select_training_images(
    data: DatasetSplits, recorded: Mapping[tuple[str, int], str]
) -> tuple[ImageDataset, str]:
    """What a model may have learned from, of these data, and in words which images that is.

    Args:
        recorded: (path, bytes) -> split of the run that the model is of (`read_recorded`); empty
            where there is none. It counts where the run saw these images; else the data's own
            division does, and data that are not divided are taken whole.

    Raises DataError where there is no image to train on.
    """
    parts = data.splits
    origins = {TRAIN: "the training split", ALL: "all of them, as they are not divided"}
    if is_run_data(data, recorded):
        parts = split_as_recorded(data, recorded)
        origins = {TRAIN: "those that the run trained on", ALL: "those that the run never saw"}
    for name, origin in origins.items():
        if len(parts.get(name, ())):
            return parts[name], origin
    there = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
    raise DataError(f"{data.source}: has no training images to search; there are {there}")


def subsample_examples(examples: ImageDataset, most: int) -> ImageDataset:
    """All, or so many as are worth the wait; always the same ones."""
    if len(examples) <= most:
        return examples
    order = numpy_generator(0, "neighbours").permutation(len(examples))[:most]
    return examples.select(np.sort(order))
