"""Streaming from remote or indexed shards, which may be larger than the local disk.

| DATA | is |
|---|---|
| `https://host/train-{000..999}.tar` | tars or parquets on a web server |
| `s3://bucket/train-*.tar`, `gs://...` | the same in object storage, by fsspec |
| `ONE::OTHER` | several such, one after the other |
| `train.index.jsonl`, `https://host/train.index.jsonl` | what `patchwords index` wrote |

Each shard is read once to index it (see `shard_index`), and the index is kept. From then on
everything is as with images on this machine: any image can be read, its shard is fetched into
the cache where it is not there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from patchwords.data.dataset import (
    DatasetSplits,
    ImageDataset,
    Listing,
    abbreviate_list,
    build_dataset_splits,
    infer_splits_from_filenames,
    pluralize,
)
from patchwords.data.sampler import SampleKey, draw_shard_groups
from patchwords.data.shards.cache import ShardCache
from patchwords.data.shards.index import INDEX_SUFFIX, ShardIndex, parse_index_line
from patchwords.data.shards.store import Shard, ShardReader, ShardStore, load_or_build_index
from patchwords.data.shards.tar import (
    BRACE_RANGE,
    COMPRESSED_SUFFIXES,
    expand_braces,
    expand_tar_spec,
    note_missing_end_mark,
)
from patchwords.data.sources.tables import Columns
from patchwords.download import download_file, is_remote_url, list_matching_urls
from patchwords.errors import ConfigError, DataError, PatchwordsError
from patchwords.files import cache_folder

DEFAULT_CACHE_GIB = 64.0  # GiB
MAX_INDEX_THREADS = 4  # shards that are indexed at the same time: to wait for several connections
SHARD_SUFFIXES = (".tar", ".parquet", ".pq")


def is_stream_spec(spec: str) -> bool:
    """Return whether DATA is remote, or an index of shards."""
    return any(is_remote_url(part) or part.endswith(INDEX_SUFFIX) for part in spec.split("::"))


def open_stream(
    source: str, columns: Columns, cache_size: float = DEFAULT_CACHE_GIB
) -> DatasetSplits:
    """Open the images of shards; their keys are `shard.tar:key.jpg` or `shard.parquet:row`.

    `cache_size`: GiB on the local disk that fetched shards may take. Raises DataError and
    StorageError.
    """
    cache = open_shard_cache(cache_size)
    indexes = load_shard_indexes(source, columns, cache)
    addresses = [index.shard for index in indexes]
    folder = os.path.commonpath([os.path.dirname(address) for address in addresses])
    listings: dict[str, Listing] = {}
    splits = infer_splits_from_filenames(source, addresses)
    first = [0, *accumulate(len(index.names) for index in indexes)]  # row of each shard
    for index, split, row in zip(indexes, splits, first, strict=False):
        if columns.need_labels:
            _refuse_unlabelled(index)
        shard = os.path.relpath(index.shard, folder)
        listing = listings.setdefault(split, Listing())
        listing.keys += [f"{shard}:{name}" for name in index.names]
        listing.names += index.labels
        listing.bytes += index.sizes
        listing.rows += range(row, row + len(index.names))
    if not first[-1]:
        raise DataError(f"{source}: no images in {pluralize(len(indexes), 'shard')}")
    shard_of = np.repeat(np.arange(len(indexes), dtype=np.int32), np.diff(first))
    shards = tuple(Shard(i.shard, i.bytes, i.packed, i.column) for i in indexes)
    reader = ShardReader(
        ShardStore(cache, shards),
        shard_of,
        _concatenate_lists([index.offsets for index in indexes], np.int64),
        _concatenate_lists([index.sizes for index in indexes], np.int64),
        _concatenate_lists([index.digests for index in indexes], np.uint64),
    )
    return build_dataset_splits(
        source,
        "stream",
        {split: listing for split, listing in listings.items() if listing.keys},
        reader,
        notes=_stream_notes(indexes, reader.shards),
        classes=_known_classes(indexes),
        shards=shard_of,
        digests=reader.digests,
    )


def open_shard_cache(size: float = DEFAULT_CACHE_GIB) -> ShardCache:
    """Return the user's shard cache, bounded to this many GiB."""
    return ShardCache(cache_folder() / "shards", round(size * 2**30))


def load_shard_indexes(
    source: str, columns: Columns, cache: ShardCache, anew: bool = False
) -> list[ShardIndex]:
    """Load the index of every shard of DATA, from an index file or the cache, or build it."""
    indexes: list[ShardIndex] = []
    for part in source.split("::"):
        if part.endswith(INDEX_SUFFIX):
            indexes += _read_index(part)
        else:
            indexes += _make_indexes(expand_shard_addresses(part), columns, cache, anew)
    return indexes


def expand_shard_addresses(spec: str) -> list[str]:
    """Expand `https://host/x-{000..002}.tar`, a storage pattern, or local paths to addresses."""
    if spec.endswith(COMPRESSED_SUFFIXES):
        raise DataError(f"{spec}: a compressed tar cannot be read in any order; unpack it to .tar")
    if not spec.partition("?")[0].lower().endswith(SHARD_SUFFIXES):
        raise DataError(
            f"{spec}: shards are .tar or .parquet files, or an {INDEX_SUFFIX[1:]} of such"
        )
    if not is_remote_url(spec):
        return [os.path.abspath(path) for path in expand_tar_spec(spec)]
    addresses = expand_braces(spec) if BRACE_RANGE.search(spec) else [spec]
    if "*" in spec:
        addresses = [match for address in addresses for match in list_matching_urls(address)]
    if not addresses:
        raise DataError(f"{spec}: no file matches")
    return addresses


def format_index_lines(indexes: Sequence[ShardIndex], folder: Path) -> Iterator[str]:
    """Format the lines of an index file in `folder`; shards below it get relative paths."""
    for index in indexes:
        shard = index.shard
        if not is_remote_url(shard):
            below = os.path.relpath(shard, os.path.abspath(folder))
            shard = shard if below.startswith("..") else below
        yield replace(index, shard=shard).to_line() + "\n"


def _read_index(path: str) -> list[ShardIndex]:
    """Read the shards of an index file; return absolute addresses."""
    try:
        if is_remote_url(path):
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "index"
                download_file(path, copy)
                text = copy.read_text(encoding="utf-8")
        else:
            text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"{path}: cannot be read: {getattr(fault, 'strerror', fault)}") from fault
    folder = (
        path.rpartition("/")[0] if is_remote_url(path) else os.path.dirname(os.path.abspath(path))
    )
    indexes = [
        parse_index_line(f"{path}, line {number}", line)
        for number, line in enumerate(text.splitlines(), start=1)
    ]
    if not indexes:
        raise DataError(f"{path}: is empty; write it again by `patchwords index`")
    return [
        index
        if is_remote_url(index.shard) or os.path.isabs(index.shard)
        else replace(index, shard=f"{folder}/{index.shard}")
        for index in indexes
    ]


def _make_indexes(
    addresses: Sequence[str], columns: Columns, cache: ShardCache, anew: bool
) -> list[ShardIndex]:
    """Index several shards at once, with progress on a terminal."""
    folder = cache_folder() / "index"
    indexes: list[ShardIndex] = []
    with ThreadPoolExecutor(max_workers=MAX_INDEX_THREADS) as pool:
        made = [
            pool.submit(load_or_build_index, cache, folder, each, columns, anew)
            for each in addresses
        ]
        try:
            for each in made:
                indexes.append(each.result())
                _show_index_progress(len(indexes), len(addresses))
        finally:
            pool.shutdown(cancel_futures=True)
    return indexes


def _show_index_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rindexed {done:,} of {pluralize(total, 'shard')}", end=end, file=sys.stderr)


def _refuse_unlabelled(index: ShardIndex) -> None:
    """Raise DataError for missing labels, and say where they are expected."""
    bare = [name for name, label in zip(index.names, index.labels, strict=True) if label is None]
    if bare and index.column is None:
        key = bare[0].partition(".")[0]
        raise DataError(
            f"{index.shard}: {bare[0]} has no label; "
            f'put {key}.cls or {key}.json with {{"label": ...}} next to it'
        )
    if bare and len(bare) == len(index.names):
        raise DataError(f"{index.shard}: has no labels; choose their column by --label-column")


def _known_classes(indexes: Sequence[ShardIndex]) -> list[str] | None:
    """Return the classes in order if the schema of every shard has them."""
    if any(index.classes is None for index in indexes):
        return None
    return list(dict.fromkeys(name for index in indexes for name in index.classes or ()))


def _stream_notes(indexes: Sequence[ShardIndex], shards: ShardStore) -> list[str]:
    notes = [note_missing_end_mark(index.shard) for index in indexes if not index.ended]
    aside = [name for index in indexes for name in index.aside]
    if aside:
        notes.append(
            f"{pluralize(len(aside), 'member')} of the tars left out: {abbreviate_list(aside)}"
        )
    far = [shard.packed for shard in shards.shards if not shard.near]
    if far:
        gib = sum(far) / 2**30
        notes.append(
            f"{pluralize(len(far), 'shard')} ({gib:,.2f} GiB) fetched as they are wanted, into "
            f"{shards.cache.folder}, at most {shards.cache.bound / 2**30:,.2f} GiB at a time"
        )
    return notes


def _concatenate_lists(lists: Sequence[Sequence[int]], kind: type) -> np.ndarray:
    """Concatenate a field of all shards -> [n]."""
    return np.concatenate([np.array(values, dtype=kind) for values in lists])


# Prefetching: the next shards are fetched while the present ones are read.
#
# The reader says which sample it has reached; with a new group of shards (`draw_shard_groups`) a
# thread begins to fetch the rest of that group and the next. Every worker process does so for
# itself, each from another shard on, so that several come at once; shards that another process
# fetches are passed over. The thread is started by the reading process: none runs when processes
# fork.


@dataclass
class ShardPrefetcher:
    """Prefetches shards: called with each sample's position, it fetches this group and the next."""

    shards: ShardStore
    shard_of: np.ndarray  # [n] of the samples that are trained on
    seed: int
    group: int  # shards
    epoch: int = -1  # that `groups` and `group_of` are for
    groups: list[np.ndarray] = field(default_factory=list)
    group_of: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # [shards]
    begun: tuple[int, int] = (-1, -1)  # epoch and group that were last brought from
    thread: threading.Thread | None = None

    def __call__(self, place: SampleKey) -> None:
        if place.epoch != self.epoch:
            self.epoch = place.epoch
            self.groups = self._groups(place.epoch)
            self.group_of = np.zeros(len(self.shards.shards), np.int64)
            for number, group in enumerate(self.groups):
                self.group_of[group] = number
        here = int(self.group_of[self.shard_of[place.sample]])
        busy = self.thread is not None and self.thread.is_alive()
        if (place.epoch, here) > self.begun and not busy:
            self.begun = (place.epoch, here)
            self.thread = threading.Thread(target=self._bring, args=self._wanted(here), daemon=True)
            self.thread.start()

    def _groups(self, epoch: int) -> list[np.ndarray]:
        return draw_shard_groups(self.seed, epoch, self.shard_of, self.group)

    def _wanted(self, here: int) -> tuple[list[int], list[int]]:
        """List the shards of this group and of the next, which may be of the next epoch."""
        last = here + 1 == len(self.groups)
        following = self._groups(self.epoch + 1)[0] if last else self.groups[here + 1]
        now = self.groups[here].tolist()
        return now, [shard for shard in following.tolist() if shard not in now]

    def _bring(self, now: list[int], following: list[int]) -> None:
        keep = {*now, *following}
        turn = os.getpid()  # so that workers begin at different shards
        for group in (now, following):
            for place in range(len(group)):
                with suppress(PatchwordsError):  # the reader of the shard meets and reports it
                    self.shards.bring_ahead(group[(place + turn) % len(group)], keep)


def build_shard_prefetcher(examples: ImageDataset, seed: int, group: int) -> ShardPrefetcher | None:
    """Make the prefetcher of a training order; None without remote shards."""
    if examples.shards is None or not isinstance(examples.reader, ShardReader):
        return None
    return ShardPrefetcher(examples.reader.shards, examples.shards, seed, group)


def check_shard_cache_size(examples: ImageDataset, group: int) -> None:
    """Raise ConfigError unless the shards that are read at a time fit into the cache."""
    if not isinstance(examples.reader, ShardReader):
        return
    shards = examples.reader.shards
    needs = sorted((shard.needs for shard in shards.shards), reverse=True)[:group]
    if sum(needs) > shards.cache.bound:
        raise ConfigError(
            f"--cache-size {shards.cache.bound / 2**30:.3g} GiB is less than the "
            f"{sum(needs) / 2**30:.3g} GiB of {pluralize(len(needs), 'shard')} mixed at a time; "
            "raise it (twice as much lets the next ones come ahead), or lower --shuffle-shards"
        )
