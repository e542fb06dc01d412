"""Feature arrays on disk, filled block by block, so that an interrupted pass resumes.

    3f2a.../
      features.npy   [n, R], a row for every image in their order; zeros for one that is bad
      done           while it is filled: a byte for each 64 rows, 1 once these are on the disk
      bad.jsonl      while it is filled: position and reason of each image that cannot be read
      about.json     written last, so that what has it is whole: what it is of, and the bad images

Several processes may fill one file, each its own blocks.
Sizes: n images, R representation.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from patchwords.errors import ConfigError
from patchwords.files import explain_write_error, write_atomically

BLOCK_ROWS = 64  # rows
FLUSH_SECONDS = (
    2.0  # seconds between two times that blocks are brought to the disk: at most these are lost
)


@dataclass(frozen=True)
class FeatureStore:
    """A folder that holds one array of features."""

    folder: Path

    @property
    def rows(self) -> Path:
        return self.folder / "features.npy"

    @property
    def done(self) -> Path:
        return self.folder / "done"

    @property
    def bad(self) -> Path:
        return self.folder / "bad.jsonl"

    @property
    def about(self) -> Path:
        return self.folder / "about.json"

    @property
    def is_whole(self) -> bool:
        return self.about.is_file()

    def begin(self, images: int, width: int, dtype: np.dtype) -> None:
        """An array in which nothing is done, unless one was begun before: then that."""
        if self.done.is_file():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.rows, "wb") as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": (images, width)}
                np.lib.format.write_array_header_1_0(file, header)
                file.truncate(file.tell() + images * width * dtype.itemsize)
        except OSError as error:
            raise explain_write_error(error, self.rows) from error
        self.bad.unlink(missing_ok=True)
        write_atomically(self.done, bytes(-(-images // BLOCK_ROWS)))

    def blocks_left(self) -> np.ndarray:
        """Numbers of the blocks that are not done, rising."""
        return np.flatnonzero(np.fromfile(self.done, np.uint8) == 0)

    @contextmanager
    def filling(self) -> Iterator[FeatureStoreWriter]:
        """For the process that fills some of the blocks; what it wrote is kept if it ends early.

        Raises ConfigError where the disk is full, or the file is not there for this process.
        """
        try:
            offset = np.load(self.rows, mmap_mode="r").offset
            with (
                open(self.rows, "r+b") as rows,
                open(self.done, "r+b") as done,
                open(self.bad, "ab") as bad,
            ):
                filling = FeatureStoreWriter(rows, done, bad, offset)
                try:
                    yield filling
                finally:
                    filling.bring_to_disk()
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self.folder} is not there for all processes: --cache a folder on a disk that "
                "all machines share"
            ) from error
        except OSError as error:
            raise explain_write_error(error, self.rows) from error

    def finish(self, about: Mapping[str, Any]) -> None:
        """All blocks are done: say so, and what it is of."""
        assert not len(self.blocks_left())
        found = {}
        for line in self.bad.read_text("utf-8").splitlines():
            with suppress(ValueError):  # half a line, which a kill has left; it came again
                index, reason = json.loads(line)
                found[index] = reason
        text = json.dumps({**about, "bad": sorted(found.items())}, indent=2)
        write_atomically(self.about, text + "\n")
        self.done.unlink()
        self.bad.unlink()

    def read(self) -> tuple[np.ndarray, list[tuple[int, str]]]:
        """-> memory-mapped [n, R], and (position, reason) of each row that is no features."""
        try:
            bad = json.loads(self.about.read_text("utf-8"))["bad"]
            values = np.load(self.rows, mmap_mode="r")
            os.utime(self.about)  # what was used longest ago is removed first
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{self.folder} is damaged ({error}): delete it, and it is made again"
            ) from error
        return values, [(index, reason) for index, reason in bad]

    def remove(self) -> None:
        """Delete the file; a process that has it mapped keeps it until it is closed."""
        self.about.unlink(missing_ok=True)  # first: what has it counts as whole
        shutil.rmtree(self.folder, ignore_errors=True)


class FeatureStoreWriter:
    """Writes blocks; a block counts as done only after its rows are on the disk."""

    def __init__(self, rows: BinaryIO, done: BinaryIO, bad: BinaryIO, offset: int) -> None:
        self.rows, self.done, self.bad, self.offset = rows, done, bad, offset
        self.waiting: list[int] = []
        self.last = time.monotonic()

    def write(self, block: int, rows: np.ndarray | None, bad: Sequence[tuple[int, str]]) -> None:
        """rows: [64, R], fewer in the last block, None if all are bad; bad: (position, reason)."""
        if rows is not None:
            self.rows.seek(self.offset + block * BLOCK_ROWS * rows[0].nbytes)
            self.rows.write(rows.tobytes())
        for index, reason in bad:  # the line break first: half a line may stand before
            self.bad.write(b"\n" + json.dumps([index, reason]).encode())
        self.waiting.append(block)
        if time.monotonic() >= self.last + FLUSH_SECONDS:
            self.bring_to_disk()

    def bring_to_disk(self) -> None:
        for file in (self.rows, self.bad):
            file.flush()
            os.fsync(file.fileno())
        for block in self.waiting:
            self.done.seek(block)
            self.done.write(b"\1")
            self.done.flush()  # one byte at a time: its neighbours belong to other processes
        self.waiting = []
        self.last = time.monotonic()
