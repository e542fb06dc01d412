"""Deduplication: training images that are copies or near-copies of test images.

A model that has seen the test images is measured too well. The paper takes them out of its
pre-training data first (section 4.1, by the procedure of Kolesnikov et al., arXiv 1912.11370).
Here two images are alike when their files are equal, or when their perceptual hashes differ in a
few bits (see `fingerprints`).

Sizes: n images of the pre-training data, m of all the test sets.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from patchwords.data.dataset import ALL, TEST, TRAIN, VALIDATION, DatasetSplits, ImageDataset
from patchwords.data.doctor.fingerprints import find_near_pairs
from patchwords.data.doctor.survey import SurveyedImage, SurveyProgress, survey_splits
from patchwords.errors import ConfigError, DataError

# Of 20 pairs of CIFAR-10 train and test looked at for each distance, those that are one picture:
# 20 at 5 bits, 19 at 6, 13 at 7, 11 at 8. Leaving out an image too many costs next to nothing.
NEAR_DUPLICATE_BITS = 6  # differing bits of 64
DUPLICATES_CSV_HEADER = ("path", "bytes", "like", "of", "distance", "same_file")


class DuplicateMatch(NamedTuple):
    """A training image, and the test image that it resembles most."""

    image: int  # its position in the pre-training examples
    test: str  # its set, as the user wrote it
    key: str  # in that set
    distance: int  # differing bits of the hashes
    same_file: bool


@dataclass(frozen=True)
class Duplicates:
    """The result: `matches` has each image concerned, in the order of the data."""

    examples: ImageDataset  # [n] the pre-training images
    matches: tuple[DuplicateMatch, ...]
    found: Mapping[str, int]  # test set -> how many of its images have a double
    compared: Mapping[str, int]  # test set -> how many of its images were compared
    unreadable: int  # images of either side that cannot be decoded
    plain: int  # images too flat or too small for a perceptual hash: compared by their files


def find_duplicates(
    data: DatasetSplits,
    tests: Sequence[DatasetSplits],
    *,
    near: int = NEAR_DUPLICATE_BITS,
    workers: int | None = None,
    progress: SurveyProgress | None = None,
) -> Duplicates:
    """Compare every training image with every image of the tests.

    Of a test set with splits, validation and test count; `near` is in bits of 64, 0 to 16;
    `workers` as in `survey_splits`. Raises ConfigError and DataError.
    """
    if not 0 <= near <= 16:
        raise ConfigError(f"near is {near}; it counts differing bits of 64: choose 0 to 16")
    train = data.splits.get(ALL, data.splits.get(TRAIN))
    if train is None:
        raise DataError(f"{data.source}: has no images for train to compare")
    against = [(test.source, part) for test in tests for part in _held_out_parts(test)]
    parts = {"train": train, **{str(i): part for i, (_, part) in enumerate(against)}}
    sights = survey_splits(parts, workers=workers, progress=progress)
    seen = sights["train"]
    others = [sight for i in range(len(against)) for sight in sights[str(i)]]
    names = [(source, key) for source, part in against for key in part.keys]
    best, met = _match_same_files(seen, others)
    alike, met_alike = _match_near_duplicates(seen, others, near)
    best = {**alike, **best}  # an equal file is as like as can be
    met |= met_alike
    sources = [test.source for test in tests]
    every = [*seen, *others]
    return Duplicates(
        examples=train,
        matches=tuple(
            DuplicateMatch(i, *names[j], distance, seen[i].digest == others[j].digest)
            for i, (j, distance) in sorted(best.items())
        ),
        found={source: sum(names[j][0] == source for j in met) for source in sources},
        compared={source: sum(name == source for name, _ in names) for source in sources},
        unreadable=sum(bool(sight.unreadable) for sight in every),
        plain=sum(sight.hash is None and not sight.unreadable for sight in every),
    )


def format_duplicates_csv(duplicates: Duplicates) -> str:
    """Format a CSV with a row for each image to leave out, as `--exclude` reads it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(DUPLICATES_CSV_HEADER)
    for image, test, key, distance, same_file in duplicates.matches:
        path, size = duplicates.examples.keys[image], int(duplicates.examples.sizes[image])
        rows.writerow((path, size, key, test, distance, "yes" if same_file else "no"))
    return text.getvalue()


def _held_out_parts(test: DatasetSplits) -> list[ImageDataset]:
    """Return the split that a score is measured on; all images if the set is not divided."""
    parts = [test.splits[name] for name in (ALL, VALIDATION, TEST) if name in test.splits]
    return parts or list(test.splits.values())


NearestMatches = dict[
    int, tuple[int, int]
]  # i of the images -> j of the test images, differing bits


def _match_same_files(
    seen: Sequence[SurveyedImage], others: Sequence[SurveyedImage]
) -> tuple[NearestMatches, set[int]]:
    """Match images of equal bytes: the first test image of each, and all test images matched."""
    first: dict[bytes, int] = {}
    for j, sight in enumerate(others):
        if not sight.unreadable:
            first.setdefault(sight.digest, j)
    nearest = {i: (first[s.digest], 0) for i, s in enumerate(seen) if s.digest in first}
    there = {seen[i].digest for i in nearest}
    return nearest, {j for j, sight in enumerate(others) if sight.digest in there}


def _match_near_duplicates(
    seen: Sequence[SurveyedImage], others: Sequence[SurveyedImage], near: int
) -> tuple[NearestMatches, set[int]]:
    """Match images of near hashes: the nearest test image of each, and all those matched.

    Of equal hashes (one logo a thousand times) only one is compared.
    """
    at_a, hash_a = _hashes(seen)
    at_b, hash_b = _hashes(others)
    a, of_a = np.unique(hash_a, return_inverse=True)
    b, first_b, of_b = np.unique(hash_b, return_index=True, return_inverse=True)
    i, j, apart = find_near_pairs(a, b, near)
    order = np.lexsort((j, apart, i))
    i, j, apart = i[order], j[order], apart[order]
    begins = np.flatnonzero(np.diff(i, prepend=-1))  # the nearest of each i
    nearest = {
        int(one): (int(at_b[first_b[other]]), int(bits))
        for one, other, bits in zip(i[begins], j[begins], apart[begins], strict=True)
    }
    return (
        {int(at): nearest[k] for at, k in zip(at_a, of_a.tolist(), strict=True) if k in nearest},
        set(at_b[np.isin(of_b, j)].tolist()),
    )


def _hashes(sights: Sequence[SurveyedImage]) -> tuple[np.ndarray, np.ndarray]:
    """Return positions (int64) and hashes (uint64) of the images that have a hash."""
    at = [i for i, sight in enumerate(sights) if sight.hash is not None]
    return np.array(at, np.int64), np.array([sights[i].hash for i in at], np.uint64)
