"""Train, validation and test splits: stratified, stable, copies kept together.

An image's place in the draw is a hash of the seed and its key, so the order of files does not
matter, and a photo that is added moves few others. Per class, the images that come first in the
draw go to test, the next to validation, the rest to train.

Copies of an image count as one group that is never parted, also across classes: near copies where
the images have fingerprints (`doctor.contents`), else equal files, for which only images of equal
length are read. A group is drawn where the quota of each of its
classes has room for all of it, so counts differ from the exact share by less than one image while
single images suffice to fill the quota, and else by less than the size of a group.

Of data in shards far away whole shards are drawn from first, one after the other: what is held
out, and read at every evaluation, then lies in few of them.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from patchwords.data.dataset import (
    ALL,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    DatasetSplits,
    ImageDataset,
    concatenate_datasets,
    pluralize,
)
from patchwords.data.doctor.contents import CopyGroups, group_copies
from patchwords.errors import ConfigError, DataError
from patchwords.files import write_atomically
from patchwords.rng import derive_seed, numpy_generator

MAX_VALIDATION_IMAGES = 5_000  # images: then the standard error of an accuracy is 0.7 % at most
SPLITS_CSV_HEADER = ("path", "label", "split", "bytes")


def join_validation(data: DatasetSplits) -> DatasetSplits:
    """Join the validation images to the training images, for a final run."""
    if not {TRAIN, VALIDATION} <= data.splits.keys():
        return data
    splits = dict(data.splits)
    splits[TRAIN] = concatenate_datasets([splits[TRAIN], splits.pop(VALIDATION)])
    return replace(data, splits=splits)


def split_dataset(
    data: DatasetSplits,
    *,
    seed: int,
    validation: float = 0.1,
    test: float = 0.2,
    most_validation: int | None = MAX_VALIDATION_IMAGES,
) -> DatasetSplits:
    """Split data into train, validation and test, where the fractions are above 0.

    What the source has divided stays so: test is cut only from data that is not divided at all,
    and validation (at most `most_validation` images) from train if there is none.
    """
    for name, fraction in (("validation", validation), ("test", test)):
        if not 0.0 <= fraction < 1.0:
            raise ConfigError(f"{name} {fraction}: it is a share of the images, from 0 to below 1")
    splits = dict(data.splits)
    whole = splits.pop(ALL, None)
    rest = splits[TRAIN] if whole is None else whole
    cut_test = whole is not None and test > 0.0
    cut_validation = VALIDATION not in splits and validation > 0.0
    cuts = cut_test or cut_validation
    left = np.arange(len(rest))
    groups, notes = _group_by_content(rest) if cuts else (left, [])
    ranks = rank_by_hash(rest, seed) if cuts else left
    if cut_test:
        room = allocate_class_quotas(_count_labels(rest.labels[left]), test, at_least_one_of=2)
        chosen = _draw_groups(rest.labels, groups, ranks, left, room)
        splits[TEST] = rest.select(chosen)
        left = np.setdiff1d(left, chosen)
    if cut_validation:
        most = len(left) if most_validation is None else most_validation
        share = min(validation, most / max(len(left), 1))
        counts = _count_labels(rest.labels[left])
        room = allocate_class_quotas(counts, share, at_least_one_of=3)
        if room.sum() > most:  # more small classes than images
            room = allocate_class_quotas(counts, share)
        chosen = _draw_groups(rest.labels, groups, ranks, left, room)
        splits[VALIDATION] = rest.select(chosen)
        left = np.setdiff1d(left, chosen)
    splits[TRAIN] = rest.select(left)
    order = (TRAIN, VALIDATION, TEST)
    return replace(
        data,
        splits={name: splits[name] for name in order if name in splits},
        notes=(*data.notes, *notes),
    )


def divide_as_recorded(
    data: DatasetSplits, recorded: Mapping[tuple[str, int], str]
) -> DatasetSplits | None:
    """Divide data as a run has divided them; None where an image is not in its record.

    The images of the splits come in the order that `split_dataset` gives them.
    """
    splits = dict(data.splits)
    rest = splits.pop(ALL if ALL in splits else TRAIN)
    names = [recorded.get(place) for place in zip(rest.keys, rest.sizes.tolist(), strict=True)]
    if None in names or set(names) & splits.keys():
        return None
    learned = [TRAIN if name in {None, UNUSED} else str(name) for name in names]
    for split in {TRAIN, *learned}:
        splits[split] = rest.select([i for i, name in enumerate(learned) if name == split])
    order = (TRAIN, VALIDATION, TEST)
    return replace(data, splits={name: splits[name] for name in order if name in splits})


def _group_by_content(examples: ImageDataset) -> tuple[np.ndarray, list[str]]:
    """Group copies, int64 [n], with notes of how many there are."""
    if examples.fingerprints is not None:
        copies = group_copies(examples.fingerprints)
    else:
        groups = group_exact_duplicates(examples)
        copies = CopyGroups(groups, int((groups != np.arange(len(groups))).sum()), 0, 0)
    return copies.groups, copies.describe()


def rank_by_hash(examples: ImageDataset, seed: int) -> np.ndarray:
    """Rank the images by a hash, int64 [n]; remote images one shard after the other."""
    ranks = np.array([derive_seed(seed, "split", key) for key in examples.keys], dtype=np.int64)
    if examples.digests is None or examples.shards is None:
        return ranks
    present, shard_of = np.unique(examples.shards, return_inverse=True)
    of_shard = np.array([derive_seed(seed, "split", shard) for shard in present.tolist()])
    order = np.lexsort((ranks, of_shard[shard_of]))
    ranks[order] = np.arange(len(order))
    return ranks


def group_exact_duplicates(examples: ImageDataset) -> np.ndarray:
    """Group images of equal bytes, int64 [n]: the position of the first of them."""
    if examples.digests is not None:
        _, at, same = np.unique(examples.digests, return_index=True, return_inverse=True)
        return at[same]
    alike: dict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(examples.sizes.tolist()):
        alike[length].append(index)
    suspects = [i for same in alike.values() if len(same) > 1 for i in same]

    def digests(indices: list[int]) -> list[bytes]:
        return [_digest(examples, index) for index in indices]

    groups = np.arange(len(examples))
    first: dict[bytes, int] = {}
    batches = [suspects[start : start + 256] for start in range(0, len(suspects), 256)]
    with ThreadPoolExecutor(max_workers=8) as pool:  # to wait for many files at once
        for batch, seen in zip(batches, pool.map(digests, batches), strict=True):
            for index, digest in zip(batch, seen, strict=True):
                groups[index] = first.setdefault(digest, index)
    return groups


def _digest(examples: ImageDataset, index: int) -> bytes:
    try:
        return hashlib.blake2b(examples.read(index), digest_size=16).digest()
    except OSError:  # decoding reports it; here it is a copy of nothing
        return f"unreadable {index}".encode()


def allocate_class_quotas(
    counts: np.ndarray, fraction: float, at_least_one_of: int = 0, keep: int = 1
) -> np.ndarray:
    """Allocate images per class: within one of the exact share, and exact in sum.

    A class keeps `keep` images; one of `at_least_one_of` images or more (0 = none) gives one.
    Rounded by largest remainders, ties to the class with more images.
    """
    exact = counts * fraction
    low = np.floor(exact).astype(np.int64)
    if at_least_one_of:
        low = np.maximum(low, (counts >= at_least_one_of).astype(np.int64))
    high = np.minimum(np.ceil(exact).astype(np.int64), np.maximum(counts - keep, 0))
    quota = np.minimum(low, high)
    total = int(np.floor(exact.sum() + 0.5))
    for label in np.lexsort((-counts, quota - exact)):
        if quota.sum() >= total:
            break
        quota[label] += quota[label] < high[label]
    return quota


def _count_labels(labels: np.ndarray) -> np.ndarray:
    """Count the images of each label -> [1 + classes]; those without a label come first."""
    return np.bincount(labels + 1)


def _draw_groups(
    labels: np.ndarray, groups: np.ndarray, ranks: np.ndarray, left: np.ndarray, room: np.ndarray
) -> np.ndarray:
    """Draw positions out of `left`: whole groups, by rank, while their classes have room."""
    strata = (labels + 1).tolist()
    members: dict[int, list[int]] = defaultdict(list)  # in the order of each group's first rank
    for index in left[np.argsort(ranks[left], kind="stable")].tolist():
        members[int(groups[index])].append(index)
    room_left, stay = room.tolist(), _count_labels(labels[left]).tolist()
    chosen: list[int] = []

    def take_if_fits(group: int, limit: list[int], spare: int) -> bool:
        need = Counter(strata[index] for index in members[group])
        if any(number > limit[stratum] - spare for stratum, number in need.items()):
            return False
        for stratum, number in need.items():
            room_left[stratum] -= number
            stay[stratum] -= number
        chosen.extend(members.pop(group))
        return True

    for group in list(members):
        take_if_fits(group, room_left, spare=0)
    for stratum, quota in enumerate(room.tolist()):
        if not quota or room_left[stratum] < quota:
            continue
        held = [g for g, inside in members.items() if stratum in {strata[i] for i in inside}]
        for group in sorted(held, key=lambda g: len(members[g])):
            if take_if_fits(group, stay, spare=1):  # nothing but copies: the smallest group, then
                break
    return np.array(sorted(chosen), dtype=np.int64)


def fingerprint_dataset(data: DatasetSplits) -> str:
    """Hash the key, class name and length of every image, however divided."""
    lines = sorted(
        f"{key!r} {data.classes[label] if label >= 0 else None!r} {size}"
        for examples in data.parts.values()
        for key, label, size in zip(
            examples.keys, examples.labels.tolist(), examples.sizes.tolist(), strict=True
        )
    )
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def write_splits(path: Path, data: DatasetSplits) -> None:
    """Write the split of every image as `path,label,split,bytes`, atomically."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(SPLITS_CSV_HEADER)
    for split, examples in data.parts.items():
        for key, label, size in zip(
            examples.keys, examples.labels.tolist(), examples.sizes.tolist(), strict=True
        ):
            rows.writerow((key, data.classes[label] if label >= 0 else "", split, size))
    # Names of files need not be UTF-8: what is not comes back as it was.
    write_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def read_splits(path: Path) -> dict[tuple[str, int], str]:
    """Read what `write_splits` wrote: (key, bytes) -> split."""
    try:
        with Path(path).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            header, *rows = csv.reader(file)
        if tuple(header) != SPLITS_CSV_HEADER:
            raise ValueError(f"its header is {','.join(header)}, not {','.join(SPLITS_CSV_HEADER)}")
        return {(key, int(size)): split for key, _, split, size in rows}
    except (OSError, ValueError, csv.Error) as fault:
        raise DataError(f"{path}: cannot be read as a list of splits: {fault}") from fault


# Random subsets of the training images; smaller ones are contained in larger ones.
#
# As in the paper's Figure 4. All training images have one order, a function of the seed and the
# images alone, and a subset is its beginning. Within a class it is the order of the draw in
# `split_dataset`; classes take turns, so that each has about its share of any beginning.


NOISE_LIMIT = 2**63  # noise is below this


def subsample_training_images(
    data: DatasetSplits, number: int, seed: int, every_class: bool = True
) -> DatasetSplits:
    """Keep `number` training images; the others become `unused`.

    Raises ConfigError if there are fewer images, and DataError if a class of train is left
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
    """Order training images so that any first part has all classes in proportion.

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


# Few-shot draws: a few images of each class.
#
# Sizes: n labelled images, K classes.


def draw_shots(
    labels: np.ndarray, shots: int, seed: int, classes: Sequence[str] | None = None
) -> np.ndarray:
    """Draw `shots` images of each class: labels int [n] -> positions int64 [K * shots].

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


# Exclusion lists: training without these images, such as those that `patchwords dedup` lists.
#
# The list is a CSV with the columns `path` and `bytes`, an image's key and length; other columns are
# for the user.


def exclude_listed_images(data: DatasetSplits, path: str) -> DatasetSplits:
    """Leave out the images of a list, with a note of how many that were.

    Raises DataError where the list cannot be read, names none of the images, or all of them.
    """
    listed = read_exclusion_list(path)
    splits = {}
    for split, examples in data.splits.items():
        images = zip(examples.keys, examples.sizes.tolist(), strict=True)
        kept = np.flatnonzero([image not in listed for image in images])
        if len(kept):
            splits[split] = examples.select(kept)
    before, after = (sum(map(len, parts.values())) for parts in (data.splits, splits))
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
    """Read the (key, bytes) of every image in the list."""
    try:
        with Path(path).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return {(row["path"], int(row["bytes"])) for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as fault:
        reason = f"no column {fault}" if isinstance(fault, KeyError) else fault
        raise DataError(
            f"--exclude {path}: cannot be read as a list of images (path,bytes): {reason}"
        ) from fault
