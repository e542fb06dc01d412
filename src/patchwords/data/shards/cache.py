"""A bounded disk cache of whole shards, shared by all processes.

    folder/
      3f2a91-train-000.tar       an entry, always complete
      .3f2a91-train-000.tar.part being fetched by the process that holds its lock
      .3f2a91-train-000.tar.lock
      .room                      held while entries are deleted to make room

The entry unused for the longest time is deleted first; using an entry sets its time. A killed
process's locks end with it, and the next process that needs room deletes its part. A file that is
deleted while it is read stays until it is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from patchwords.errors import StorageError
from patchwords.files import explain_write_error, file_lock

PART, LOCK = ".part", ".lock"
MAX_OPEN_ATTEMPTS = 5  # times that an entry may be deleted between fetching and opening

ReserveSpace = Callable[[int], None]  # told the bytes that are about to be written
# Writes an entry to the path, which has its full length once that is reserved.
FetchEntry = Callable[[Path, ReserveSpace], None]


@dataclass(frozen=True)
class ShardCache:
    """A folder of entries of at most `bound` bytes in all.

    An entry that is being fetched counts with its full length. If the entries that processes fetch
    at one moment are larger than the bound, they exceed it: waiting could deadlock.
    """

    folder: Path
    bound: int  # bytes

    def open(self, name: str, bring: FetchEntry) -> BinaryIO:
        """Open an entry, fetched first if it is missing; other processes wait for it.

        Raises what `bring` raises, and ConfigError if the folder cannot be written.
        """
        path = self.folder / name
        for _ in range(MAX_OPEN_ATTEMPTS):
            with suppress(FileNotFoundError, NotADirectoryError):
                file = open(path, "rb")  # noqa: SIM115 - the caller closes it
                os.utime(file.fileno() if os.utime in os.supports_fd else path)
                return file
            self._make()
            with file_lock(self.folder / f".{name}{LOCK}"):
                if not path.exists():
                    self._bring(name, bring, keep=())
        raise StorageError(
            f"{self.folder}: {name} is dropped as soon as it is fetched; raise --cache-size, or "
            "give each run a cache of its own by PATCHWORDS_CACHE"
        )

    def bring_ahead(self, name: str, need: int, bring: FetchEntry, keep: Collection[str]) -> bool:
        """Fetch an entry of `need` bytes before it is used; return whether it is there.

        Nothing is done where another process is at it, or where there is room only in the place
        of entries to `keep`.
        """
        if (self.folder / name).exists():
            return True
        self._make()
        with file_lock(self.folder / f".{name}{LOCK}", wait=False) as mine:
            if not mine or not self._make_room(need, keep):
                return False
            if not (self.folder / name).exists():
                self._bring(name, bring, keep)
            return True

    def drop(self, name: str) -> None:
        """Delete an entry that will not be used any more."""
        (self.folder / name).unlink(missing_ok=True)

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise explain_write_error(fault, self.folder) from fault

    def _bring(self, name: str, bring: FetchEntry, keep: Collection[str]) -> None:
        """Write the part, then rename it; the caller holds the entry's lock."""
        part = self.folder / f".{name}{PART}"

        def reserve(size: int) -> None:
            with file_lock(self.folder / ".room"):
                self._evict(size - _file_length(part), keep)
                with open(part, "ab") as file:
                    file.truncate(size)  # sparse, but counted with its full length

        try:
            part.unlink(missing_ok=True)
            bring(part, reserve)
            with file_lock(self.folder / ".room"):  # so that it is counted once
                os.replace(part, self.folder / name)
        except OSError as fault:
            raise explain_write_error(fault, part) from fault
        finally:
            with suppress(OSError):
                part.unlink()

    def _make_room(self, need: int, keep: Collection[str]) -> bool:
        with file_lock(self.folder / ".room"):
            return self._evict(need, keep)

    def _evict(self, need: int, keep: Collection[str]) -> bool:
        """Delete entries until `need` more bytes fit; return whether they do. With .room held."""
        entries, total = [], 0
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # renamed or dropped since the folder was listed
                state = entry.stat()
                if entry.name.endswith(PART) and self._abandoned(entry.name):
                    os.unlink(entry.path)
                    continue
                total += state.st_size
                if not entry.name.startswith(".") and entry.name not in keep:
                    entries.append((state.st_mtime_ns, entry.path, state.st_size))
        for _, path, size in sorted(entries):
            if total + need <= self.bound:
                break
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass  # another process has dropped it
            except PermissionError:
                continue  # Windows keeps what is open
            total -= size
        return total + need <= self.bound

    def _abandoned(self, part: str) -> bool:
        """Return whether no process writes this part: its lock is free."""
        with file_lock(self.folder / f"{part.removesuffix(PART)}{LOCK}", wait=False) as free:
            return free


def _file_length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
