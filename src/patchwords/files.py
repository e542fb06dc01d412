"""Atomic writes, file locks that end with their process, the cache folder, durations."""

from __future__ import annotations

import errno
import importlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patchwords.errors import ConfigError, PatchwordsError

GIB = 2**30  # bytes
LOCK_POLL = 0.05  # seconds; Windows alone needs it


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write all of the new content or leave all of the old.

    The content goes to a file next to the target, is flushed to the disk and renamed. Raises
    ConfigError.
    """
    data = content.encode() if isinstance(content, str) else content
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):  # it may not exist
            part.unlink()
        raise explain_write_error(error, path) from error


def cache_folder() -> Path:
    """Return PATCHWORDS_CACHE, or patchwords/ in the user's cache folder.

    Raises ConfigError if the user has no home folder.
    """
    if chosen := os.environ.get("PATCHWORDS_CACHE"):
        return Path(chosen)
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "patchwords"
    try:
        return Path.home() / ".cache" / "patchwords"
    except RuntimeError as error:
        raise ConfigError(
            "no home folder is known, and so no place for downloads: set PATCHWORDS_CACHE to a folder"
        ) from error


def check_csv_writable(csv: Path, overwrite: bool, flag: str = "--csv") -> None:
    """Raise ConfigError before the work if the file cannot be written after it."""
    if csv.is_dir():
        raise ConfigError(f"{flag} {csv} is a folder; give the name of a file in it")
    if csv.exists() and not overwrite:
        raise ConfigError(f"{flag} {csv} exists; add --overwrite, or choose another name")
    if not csv.parent.is_dir():
        raise ConfigError(f"{flag} {csv}: the folder {csv.parent} does not exist; make it first")


def explain_write_error(error: OSError, path: Path) -> PatchwordsError:
    """Turn an OSError of writing `path` into a line that says what to do."""
    if error.errno == errno.ENOSPC:
        return ConfigError(f"the disk is full: {path} was not written; free some space")
    if error.errno in {errno.EACCES, errno.EROFS, errno.EPERM}:
        return ConfigError(f"{path} cannot be written: {error.strerror}; choose another --output")
    return ConfigError(f"{path} cannot be written: {error.strerror or error}")


@contextmanager
def file_lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the system's lock on a file; give whether it is held.

    It is not held if another process or thread has it and `wait` is False. The lock ends with the
    process that holds it; the file stays. Raises ConfigError if the file cannot be made.
    """
    try:
        with _fork_lock:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            _lock_descriptors.add(descriptor)
    except OSError as error:
        raise explain_write_error(error, path) from error
    try:
        yield _lock_descriptor(descriptor, wait)
    finally:
        with _fork_lock:
            if descriptor in _lock_descriptors:  # else a forked child has closed its copy
                _lock_descriptors.discard(descriptor)
                os.close(descriptor)  # which releases the lock


def _lock_descriptor(descriptor: int, wait: bool) -> bool:
    """Lock the open file: two descriptors exclude each other within a process, too."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return _lock_on_windows(descriptor, wait)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _lock_on_windows(descriptor: int, wait: bool) -> bool:
    """Lock the first byte: waiting is polling, as LK_LOCK gives up after ten seconds."""
    msvcrt: Any = importlib.import_module("msvcrt")
    while True:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            if not wait:
                return False
            time.sleep(LOCK_POLL)
        else:
            return True


# flock lasts until every copy of its descriptor is closed, and a fork copies it: a child forked
# while a thread holds a lock would keep that lock for ever, and then wait for itself. So a child
# closes its copies, and no fork happens between opening a descriptor and noting it.
_fork_lock = threading.Lock()
_lock_descriptors: set[int] = set()


def _close_in_child() -> None:
    for descriptor in _lock_descriptors:
        os.close(descriptor)
    _lock_descriptors.clear()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork_lock.acquire,
        after_in_parent=_fork_lock.release,
        after_in_child=_close_in_child,
    )


def format_duration(seconds: float) -> str:
    """Format seconds for the user: tenths below 10 s, at most two units.

    >>> format_duration(8.42), format_duration(125), format_duration(7384)
    ('8.4 s', '2 min 5 s', '2 h 3 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def claim_output_folder(folder: Path | None, overwrite: bool) -> Path | None:
    """Make an empty folder for results, or take one to write over file by file; None for None."""
    if folder is None:
        return None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise ConfigError(f"--output {folder} exists; add --overwrite, or choose another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error
    return folder
