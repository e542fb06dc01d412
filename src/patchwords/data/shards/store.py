"""Random access to local and remote shards; remote ones go through the cache.

A tar on this machine is read where it lies. A tar elsewhere is fetched whole. The images of a
parquet are written out one after the other, because in the parquet itself one image in random
order costs a whole group of rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from patchwords.data.shards.cache import FetchEntry, ReserveSpace, ShardCache
from patchwords.data.shards.index import (
    ShardIndex,
    digest64,
    extract_parquet_images,
    index_shard,
    parse_index_line,
)
from patchwords.data.sources.tables import Columns
from patchwords.download import REINDEX_HINT, download_file, is_remote_url
from patchwords.errors import DataError, StorageError
from patchwords.files import explain_write_error, file_lock, write_atomically


@dataclass(frozen=True)
class Shard:
    """One shard as its index knows it."""

    address: str
    bytes: int  # of the shard
    packed: int  # that it takes for reading in any order
    column: str | None = None  # of a parquet: where the images are

    @property
    def near(self) -> bool:
        """Whether the shard is read in place, without the cache."""
        return self.column is None and not is_remote_url(self.address)

    @property
    def entry(self) -> str:
        """The shard's name in the cache."""
        return _entry_name(self.address, self.column)

    @property
    def needs(self) -> int:
        """Bytes of disk while the shard is fetched: a parquet is there twice for a moment."""
        return 0 if self.near else self.packed + (self.bytes if self.column else 0)


@dataclass(frozen=True)
class ShardStore:
    """The shards of a data set, by number. Picklable: every process has its copy."""

    cache: ShardCache
    shards: tuple[Shard, ...]

    def open(self, number: int) -> BinaryIO:
        """Open a file that has the shard's images where its index says."""
        shard = self.shards[number]
        if shard.near:
            return open(shard.address, "rb")

        def bring(part: Path, reserve: ReserveSpace) -> None:
            self._bring(shard, part, reserve)

        return _open_entry(self.cache, shard.address, shard.entry, shard.packed, bring)

    def bring_ahead(self, number: int, keep: Collection[int]) -> None:
        """Fetch a shard before it is used, but not in the place of those to keep."""
        shard = self.shards[number]
        if not shard.near:
            self.cache.bring_ahead(
                shard.entry,
                shard.needs,
                lambda part, reserve: self._bring(shard, part, reserve),
                {self.shards[other].entry for other in keep},
            )

    def forget(self, number: int) -> None:
        """Delete a shard from the cache, so that its next use fetches it again."""
        if not self.shards[number].near:
            self.cache.drop(self.shards[number].entry)

    def _bring(self, shard: Shard, part: Path, reserve: ReserveSpace) -> None:
        if shard.column is None:
            download_file(shard.address, part, shard.bytes, reserve)
            return
        with open_whole_shard(self.cache, shard.address, shard.bytes) as source:
            reserve(shard.packed)
            try:
                with open(part, "r+b") as target:
                    extract_parquet_images(shard.address, source, shard.column, target)
                    target.truncate()
                    target.flush()
                    os.fsync(target.fileno())
            except DataError as fault:  # of the shard, not of the image that was asked for
                raise StorageError(str(fault)) from fault
            finally:
                self.cache.drop(_entry_name(shard.address))


@dataclass(frozen=True)
class ShardReader:
    """Reads images of shards: row -> `sizes[row]` bytes at `offsets[row]` of its shard.

    They are what was indexed, to the bit, or StorageError is raised: a shard that was rewritten
    with the same length would else be cut in the wrong places.
    """

    shards: ShardStore
    shard_of: np.ndarray  # [n] int32
    offsets: np.ndarray  # [n] int64
    sizes: np.ndarray  # [n] int64
    digests: np.ndarray  # [n] uint64

    def __call__(self, row: int) -> bytes:
        number, size = int(self.shard_of[row]), int(self.sizes[row])
        for _ in range(2):
            with self.shards.open(number) as file:
                file.seek(int(self.offsets[row]))
                data = file.read(size)
            if digest64(data) == self.digests[row]:
                return data
            self.shards.forget(number)  # it may be of a former state
        raise StorageError(
            f"{self.shards.shards[number].address} is not what it was when it was indexed; {REINDEX_HINT}"
        )


def open_whole_shard(cache: ShardCache, address: str, size: int | None = None) -> BinaryIO:
    """Open a shard as it is, fetched first if it is remote; `size` is what its index says."""
    if not is_remote_url(address):
        try:
            return open(address, "rb")
        except OSError as fault:
            raise StorageError(f"{address}: cannot be read: {fault.strerror}") from fault

    def bring(part: Path, reserve: ReserveSpace) -> None:
        download_file(address, part, size, reserve)

    return _open_entry(cache, address, _entry_name(address), size, bring)


def _open_entry(
    cache: ShardCache, address: str, entry: str, size: int | None, bring: FetchEntry
) -> BinaryIO:
    """Open an entry, fetched again if it is of an earlier state of the shard."""
    for _ in range(2):
        file = cache.open(entry, bring)
        if size is None or os.fstat(file.fileno()).st_size == size:
            return file
        file.close()
        cache.drop(entry)
    raise StorageError(f"{address} is not what it was when it was indexed; {REINDEX_HINT}")


def load_or_build_index(
    cache: ShardCache, folder: Path, address: str, columns: Columns, anew: bool = False
) -> ShardIndex:
    """Load the index of a shard from `folder`; build it if it is missing, or to replace it.

    One process makes it, and others that want it wait. A shard on this machine that has another
    length or date is indexed again.
    """
    columns = replace(columns, need_labels=False)  # that is asked of the index, not of the shard
    path = folder / f"{_hashed_name(address, repr(columns), *_file_state(address))}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise explain_write_error(fault, folder) from fault
    with file_lock(path.with_suffix(".lock")):
        if path.exists() and not anew:
            return parse_index_line(str(path), path.read_text(encoding="utf-8"))
        if anew:
            cache.drop(_entry_name(address))
        with open_whole_shard(cache, address) as file:
            index = index_shard(address, file, columns)
        write_atomically(path, index.to_line())
    return index


def _file_state(address: str) -> tuple[str, ...]:
    """Return length and date of a local file; a remote one is known by its length when fetched."""
    if is_remote_url(address):
        return ()
    state = os.stat(address)
    return (str(state.st_size), str(state.st_mtime_ns))


def _entry_name(address: str, column: str | None = None) -> str:
    return f"{_hashed_name(address, column)}.images" if column else _hashed_name(address)


def _hashed_name(address: str, *more: str) -> str:
    digest = hashlib.blake2b("\0".join((address, *more)).encode(), digest_size=8).hexdigest()
    return f"{digest}-{os.path.basename(address.partition('?')[0])[-80:]}"
