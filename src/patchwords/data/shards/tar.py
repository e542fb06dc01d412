"""Tar shards in the WebDataset layout: `key.jpg` next to `key.cls` or `key.json`.

The headers are read once for the place of each image in its tar; an image is then read by offset,
with a file opened for it. So any order of reading is fast, no handle is shared between processes,
and nothing is copied or unpacked. That needs uncompressed tars, as is usual: images do not shrink.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tarfile
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from patchwords.data.dataset import (
    DatasetSplits,
    Listing,
    abbreviate_list,
    build_dataset_splits,
    infer_splits_from_filenames,
    pluralize,
)
from patchwords.data.sources.folder import format_suffix_counts, is_image_file
from patchwords.errors import DataError

COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
BRACE_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class SliceReader:
    """Reads slices of files: row -> `sizes[row]` bytes at `offsets[row]` of a file."""

    files: tuple[str, ...]
    file_of: np.ndarray  # [n] int32, index into files
    offsets: np.ndarray  # [n] int64
    sizes: np.ndarray  # [n] int64

    def __call__(self, row: int) -> bytes:
        path, size = self.files[self.file_of[row]], int(self.sizes[row])
        with open(path, "rb") as file:
            file.seek(int(self.offsets[row]))
            data = file.read(size)
        if len(data) != size:
            raise OSError(f"{path} has become shorter since it was opened")
        return data


@dataclass
class TarSample:
    """The members of a tar that share a key: an image and its label."""

    image: tarfile.TarInfo | None = None
    label: str | None = None
    extra: list[str] = field(default_factory=list)


def open_shards(source: str, need_labels: bool = True) -> DatasetSplits:
    """Open the images of tars; their keys are `shard.tar:path/key.jpg`."""
    paths = [path for part in source.split("::") for path in expand_tar_spec(part)]
    listings: dict[str, Listing] = {}
    places: list[tuple[int, int, int]] = []  # (file, offset, bytes)
    extra: list[str] = []
    notes: list[str] = []
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    for index, (path, split) in enumerate(
        zip(paths, infer_splits_from_filenames(source, paths), strict=True)
    ):
        shard = os.path.relpath(path, folder)
        samples, ended = _index_tar_file(path)
        notes += [] if ended else [note_missing_end_mark(path)]
        for key, sample in samples.items():
            extra += sample.extra
            if sample.image is None:
                extra += [f"{key} (a label without an image)"] if sample.label else []
                continue
            if sample.label is None and need_labels:
                raise DataError(
                    f"{path}: {sample.image.name} has no label; "
                    f'put {key}.cls or {key}.json with {{"label": ...}} next to it'
                )
            listing = listings.setdefault(split, Listing())
            size = sample.image.size
            listing.add(f"{shard}:{sample.image.name}", sample.label, size, len(places))
            places.append((index, sample.image.offset_data, size))
    if not places:
        found = f"found {format_suffix_counts(extra)}" if extra else "found no files at all"
        raise DataError(f"{source}: no images in {pluralize(len(paths), 'tar')}; {found}")
    if extra:
        notes += [
            f"{pluralize(len(extra), 'member')} of the tars left out: {abbreviate_list(extra)}"
        ]
    table = np.array(places, dtype=np.int64)  # [n, 3]
    files = tuple(os.path.abspath(path) for path in paths)
    reader = SliceReader(
        files, table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].copy()
    )
    return build_dataset_splits(
        source, "shards", listings, reader, notes=notes, shards=reader.file_of
    )


def is_tar_spec(spec: str) -> bool:
    """Return whether a specification means tars: by suffix, since a brace range is no file."""
    return spec.endswith((".tar", *COMPRESSED_SUFFIXES))


def expand_tar_spec(spec: str) -> list[str]:
    """Expand `shards-{000..002}.tar`, a glob or one tar to existing paths."""
    if spec.endswith(COMPRESSED_SUFFIXES):
        raise DataError(f"{spec}: a compressed tar cannot be read in any order; unpack it to .tar")
    paths = (
        expand_braces(spec)
        if BRACE_RANGE.search(spec)
        else [spec]
        if os.path.exists(spec)
        else sorted(glob.glob(spec))
    )
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise DataError(
            f"{spec}: {len(missing)} of {len(paths)} tars not there: {abbreviate_list(missing)}"
        )
    if not paths:
        raise DataError(f"{spec}: no such tar, and no file matches")
    return paths


def expand_braces(spec: str) -> list[str]:
    """Expand every brace range; numbers are as wide as the first of the range."""
    braces = BRACE_RANGE.search(spec)
    if braces is None:
        return [spec]
    first, last = braces.groups()
    before, after = spec[: braces.start()], spec[braces.end() :]
    return [
        path
        for number in range(int(first), int(last) + 1)
        for path in expand_braces(f"{before}{number:0{len(first)}d}{after}")
    ]


def _index_tar_file(path: str) -> tuple[dict[str, TarSample], bool]:
    """Index a tar on this machine."""
    try:
        with open(path, "rb") as file:
            return index_tar(path, file)
    except OSError as fault:
        raise DataError(f"{path}: cannot be read: {fault.strerror}") from fault


def index_tar(path: str, file: BinaryIO) -> tuple[dict[str, TarSample], bool]:
    """Index a tar without reading images: key -> sample, and whether it has its end mark.

    Raises DataError where the tar is damaged or cut short, with the images that are whole.
    """
    samples: dict[str, TarSample] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                name = os.path.basename(member.name)
                if not member.isreg() or name.startswith("."):
                    continue
                stem, _, ending = name.partition(".")  # WebDataset: the key ends at the first dot
                key = os.path.join(os.path.dirname(member.name), stem)
                sample = samples.setdefault(key, TarSample())
                if ending.lower() in {"cls", "json"} and sample.label is None:
                    sample.label = _read_label(path, tar, member)
                elif "." not in ending and is_image_file(name) and sample.image is None:
                    sample.image = member
                else:
                    sample.extra.append(member.name)
            left = file.seek(0, os.SEEK_END) - tar.offset
            if 0 < left < tarfile.BLOCKSIZE:  # which tarfile takes for the end
                raise tarfile.ReadError("unexpected end of data")
    except (tarfile.TarError, EOFError) as fault:
        raise DataError(
            _describe_damage(path, samples, file.seek(0, os.SEEK_END), fault)
        ) from fault
    return samples, left > 0


def note_missing_end_mark(path: str) -> str:
    """Return the note on a missing end mark; not every writer of tars puts it."""
    return f"{path} has no end mark: if it was cut short between two files, images are missing"


def _describe_damage(
    path: str, samples: dict[str, TarSample], length: int, fault: Exception
) -> str:
    images = [sample.image for sample in samples.values() if sample.image is not None]
    whole = sum(image.offset_data + image.size <= length for image in images)
    if not samples:
        return f"{path}: not a tar, or a damaged one: {fault}"
    return f"{path}: damaged or cut short after {pluralize(whole, 'whole image')}: {fault}"


def _read_label(path: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> str | None:
    """Read a class name from `key.cls` (a name or a number) or "label" in `key.json`."""
    file = tar.extractfile(member)
    assert file is not None, "only regular members come here"
    try:
        text = file.read().decode("utf-8").strip()
        value = json.loads(text) if member.name.lower().endswith(".json") else text
    except ValueError as fault:  # not UTF-8, or not JSON
        raise DataError(f"{path}: {member.name} cannot be read: {fault}") from fault
    if isinstance(value, dict):
        value = value.get("label")
    return str(value) if isinstance(value, (str, int)) and str(value).strip() else None
