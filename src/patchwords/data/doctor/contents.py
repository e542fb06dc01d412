"""Content fingerprints: recognising an image under another name, saved again, or resized.

A fingerprint has a digest of the file and, of an image that is not too flat or too small, a
perceptual hash with the frequencies that its signs come from. Two images are copies when their
digests are equal; they are near copies when their hashes differ in 6 bits or fewer *and* their
frequencies have a cosine of 0.99 or more: a hash alone takes images of one fixed scene for copies.

Measured on 3,670 photos of flowers (`docs/data.md`): re-encoded at quality 30, or resized to a
quarter or to 32 pixels, 99.7 % are recognised; all 15 pairs found in the set itself are truly one
picture. Sizes: n images, m known images.
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from patchwords.data.dataset import (
    DatasetSplits,
    ImageDataset,
    evenly_spaced_indices,
    pluralize,
)
from patchwords.data.decode import decode_image
from patchwords.data.doctor.fingerprints import (
    HASH_BITS,
    MIN_DECODED_SIDE,
    compute_frequencies,
    find_near_pairs,
    hamming_distances,
    hash_frequencies,
    merge_groups,
)
from patchwords.data.doctor.survey import MIN_HASH_SIDE
from patchwords.data.shards.index import digest64
from patchwords.distributed import get_world
from patchwords.errors import DataError
from patchwords.files import write_atomically
from patchwords.processes import count_usable_cores

FINGERPRINT = np.dtype(
    [("digest", "<u8"), ("hash", "<u8"), ("look", "i1", (HASH_BITS,))]  # look 0: no hash
)
NEAR_COPY_BITS = 6  # differing bits of 64
MIN_COPY_COSINE = 0.99  # of the frequencies
MAX_NEAR_COPIES = 12  # larger groups of look-alikes are a series or a fixed camera, not copies
# What a scan may cost, on one core: decoding takes about 0.8 ms an image and 10 ns a byte of it.
MAX_NEAR_SECONDS = 60.0
MAX_EXACT_BYTES = 16 << 30  # read at some hundred MB/s
IMAGES_PER_TASK = 64
MAX_SAMPLED_HASHES = 200
MAX_KEPT_SCANS = 4  # of this process: a sweep opens the same data for every run


@dataclass(frozen=True)
class ContentScan:
    """How closely the images of a data set were looked at."""

    exact: bool  # the digest of every file
    near: bool  # the look of every image


def plan_scan(sizes: np.ndarray, remote: bool) -> ContentScan:
    """Choose how closely to look, by the sizes [n] in bytes: no clock decides how data are split."""
    if remote:  # the index has the digests
        return ContentScan(exact=True, near=False)
    total = int(sizes.sum())
    seconds = len(sizes) * 0.8e-3 + total * 10e-9
    return ContentScan(exact=total <= MAX_EXACT_BYTES, near=seconds <= MAX_NEAR_SECONDS)


def add_fingerprints(data: DatasetSplits) -> DatasetSplits:
    """Add the fingerprint of every image, with a note where the data are too large for all of it."""
    sizes = np.concatenate([examples.sizes for examples in data.splits.values()])
    remote = any(examples.digests is not None for examples in data.splits.values())
    scan = plan_scan(sizes, remote)
    if not scan.exact:
        note = "too many images to read them all first: only files of equal length are compared"
        return replace(data, notes=(*data.notes, note))
    splits = {
        name: replace(examples, fingerprints=_scan_once(data.source, examples, scan.near))
        for name, examples in data.splits.items()
    }
    note = "too many images to look at them all first: equal files are recognised, not resized ones"
    notes = () if scan.near or remote else (note,)
    return replace(data, splits=splits, notes=(*data.notes, *notes))


_kept_scans: dict[tuple[str, bool, bytes], np.ndarray] = {}


def _scan_once(source: str, examples: ImageDataset, near: bool) -> np.ndarray:
    """Fingerprint images, or return what a scan of them in this process has given."""
    if examples.digests is not None:
        return _scan_images(examples, range(len(examples)), near=False)
    names = "\n".join(map(repr, zip(examples.keys, examples.sizes.tolist(), strict=True)))
    digest = hashlib.blake2b(names.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    place = (str(Path(source).absolute()), near, digest)
    if place not in _kept_scans:
        while len(_kept_scans) >= MAX_KEPT_SCANS:
            del _kept_scans[next(iter(_kept_scans))]
        _kept_scans[place] = _scan_images(examples, range(len(examples)), near)
    return _kept_scans[place]


def fingerprint_image(data: bytes, near: bool = True) -> np.ndarray:
    """Fingerprint an encoded image -> []; without a look where it says nothing or is damaged."""
    print_ = np.zeros((), FINGERPRINT)
    print_["digest"] = digest64(data)
    if near:
        try:
            image = decode_image(data, smallest=MIN_DECODED_SIDE)
        except (DataError, MemoryError):  # training reports it
            return print_
        frequencies = compute_frequencies(image) if min(image.size) >= MIN_HASH_SIDE else None
        if frequencies is not None:
            print_["hash"] = hash_frequencies(frequencies)
            unit = frequencies / np.linalg.norm(frequencies)
            print_["look"] = np.rint(127 * unit)
    return print_


def _scan_images(examples: ImageDataset, indices: Sequence[int], near: bool) -> np.ndarray:
    """Fingerprint images at these positions in threads, as decoding leaves Python's lock."""
    prints = np.zeros(len(indices), FINGERPRINT)
    if examples.digests is not None:
        prints["digest"] = examples.digests[list(indices)]
        return prints

    def scan(start: int) -> None:
        for place in range(start, min(start + IMAGES_PER_TASK, len(indices))):
            try:
                prints[place] = fingerprint_image(examples.read(indices[place]), near)
            except (OSError, DataError):  # decoding reports it; here it is a copy of nothing
                continue

    pool = ThreadPoolExecutor(max(1, count_usable_cores() // get_world().local_size))
    try:
        list(pool.map(scan, range(0, len(indices), IMAGES_PER_TASK)))
    finally:  # when interrupted, what is not begun is not waited for
        pool.shutdown(cancel_futures=True)
    return prints


def find_copies(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find pairs of a copy in `a` [n] of an image in `b` [m] -> positions in a and b, each [pairs].

    A file is paired with the first equal one of `b` only.
    """
    known, first = np.unique(b["digest"], return_index=True)  # [k], the first of each digest
    place = np.minimum(np.searchsorted(known, a["digest"]), len(known) - 1)  # [n]
    equal = np.flatnonzero((known[place] == a["digest"]) & (a["digest"] != 0))
    seen_a, seen_b = (np.flatnonzero(prints["look"].any(1)) for prints in (a, b))
    if _is_crowded(a["hash"][seen_a], b["hash"][seen_b]):
        return equal, first[place[equal]]
    i, j, _ = find_near_pairs(a["hash"][seen_a], b["hash"][seen_b], NEAR_COPY_BITS)
    i, j = seen_a[i], seen_b[j]
    alike = _cosines(a["look"][i], b["look"][j]) >= MIN_COPY_COSINE
    return np.concatenate([equal, i[alike]]), np.concatenate([first[place[equal]], j[alike]])


def _is_crowded(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether an image resembles too many others, so that its hash tells nothing.

    Judged by some images spread over `a` [n]; also bounds the number of pairs.
    """
    if not len(a) or not len(b):
        return True
    sample = a[evenly_spaced_indices(len(a), MAX_SAMPLED_HASHES)]
    near = sum(
        int((hamming_distances(sample, b[start : start + 65536]) <= NEAR_COPY_BITS).sum())
        for start in range(0, len(b), 65536)
    )
    return near > 2 * MAX_NEAR_COPIES * len(sample)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the cosine of each row of two tables: int8 [pairs, 64], twice -> [pairs]."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


@dataclass(frozen=True)
class CopyGroups:
    """Images grouped with their copies."""

    groups: np.ndarray  # int64 [n], position of the first image of each image's group
    exact: int  # images whose file equals that of an earlier one
    near: int  # further images that join a group by their look
    series: int  # images that resemble too many others to be taken for copies

    def describe(self) -> list[str]:
        """Describe what was found, in notes for the user."""
        notes = []
        if copies := self.exact + self.near:
            counts = {"exact": self.exact, "saved again or resized": self.near}
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
            noun = pluralize(copies, "image is a copy", "images are copies")
            notes.append(f"{noun} of others ({kinds}); copies stay in one split")
        if self.series:
            notes.append(
                f"{pluralize(self.series, 'image resembles', 'images resemble')} more than "
                f"{MAX_NEAR_COPIES} others (a series, a fixed camera?): not taken for copies"
            )
        return notes


def group_copies(prints: np.ndarray) -> CopyGroups:
    """Group copies and near copies: [n] fingerprints."""
    exact = np.arange(len(prints))
    known = np.flatnonzero(prints["digest"])
    _, at, same = np.unique(prints["digest"][known], return_index=True, return_inverse=True)
    exact[known] = known[at[same]]
    first = np.flatnonzero(exact == np.arange(len(prints)))  # a thousand equal files count as one
    i, j = find_copies(prints[first], prints[first])
    joined = merge_groups(np.arange(len(first)), i, j)
    series = np.bincount(joined, minlength=len(first))[joined] > MAX_NEAR_COPIES  # [first]
    joined = np.where(series, np.arange(len(first)), joined)
    place = np.zeros(len(prints), np.int64)
    place[first] = np.arange(len(first))
    return CopyGroups(
        groups=first[joined[place[exact]]],
        exact=len(prints) - len(first),
        near=int((joined != np.arange(len(first))).sum()),
        series=int(series.sum()),
    )


def count_copies(held_out: ImageDataset, train: ImageDataset) -> int:
    """Count the held-out images that are copies of training images; 0 without fingerprints."""
    if held_out.fingerprints is None or train.fingerprints is None:
        return 0
    return len(_drop_series(*find_copies(held_out.fingerprints, train.fingerprints)))


def _drop_series(i: np.ndarray, j: np.ndarray) -> dict[int, list[int]]:
    """Collect the copies of each image; one that has too many resembles a series."""
    copies: dict[int, list[int]] = defaultdict(list)
    for place, match in zip(i.tolist(), j.tolist(), strict=True):
        copies[place].append(match)
    return {place: known for place, known in copies.items() if len(known) <= MAX_NEAR_COPIES}


# The record of a run: a fingerprint for each row of splits.csv, in its order.


def write_fingerprints(path: Path, data: DatasetSplits) -> None:
    """Write the fingerprints of all images atomically, in the order of `write_splits`."""
    prints = [examples.fingerprints for examples in data.parts.values()]
    if all(part is not None for part in prints):
        file = io.BytesIO()
        np.save(file, np.concatenate([part for part in prints if part is not None]))
        write_atomically(path, file.getvalue())


def read_fingerprints(path: Path) -> np.ndarray:
    """Read what `write_fingerprints` wrote; raises DataError for anything else."""
    try:
        prints = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as fault:
        raise DataError(f"{path}: cannot be read as fingerprints of images: {fault}") from fault
    if not isinstance(prints, np.ndarray) or prints.dtype != FINGERPRINT or prints.ndim != 1:
        raise DataError(f"{path}: cannot be read as fingerprints of images: it holds other data")
    return prints


def recognise_images(
    examples: ImageDataset, indices: Sequence[int], known: np.ndarray
) -> dict[int, list[int]]:
    """Recognise images at these positions by content -> position: the known images [m] it copies."""
    scan = plan_scan(examples.sizes[list(indices)], examples.digests is not None)
    if not (len(indices) and len(known) and scan.exact):
        return {}
    prints = _scan_images(examples, indices, scan.near and bool(known["look"].any()))
    copies = _drop_series(*find_copies(prints, known))
    return {indices[place]: matches for place, matches in copies.items()}
