"""Writing files so that nothing is lost: all of the new content, or all of the old."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from patchwords.errors import ConfigError, PatchwordsError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the target, flush to the disk, then rename over it.

    Raises ConfigError in one line where the place is full or may not be written.
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
        with contextlib.suppress(OSError):  # it may never have been there
            part.unlink()
        raise explain_write_error(error, path) from error


def cache_folder() -> Path:
    """PATCHWORDS_CACHE, or patchwords/ in the user's cache folder."""
    if chosen := os.environ.get("PATCHWORDS_CACHE"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "patchwords"


def check_csv_writable(csv: Path, overwrite: bool, flag: str = "--csv") -> None:
    """Raise ConfigError before the work, rather than after it, where the file cannot be written."""
    if csv.is_dir():
        raise ConfigError(f"{flag} {csv} is a folder; give the name of a file in it")
    if csv.exists() and not overwrite:
        raise ConfigError(f"{flag} {csv} exists; add --overwrite, or choose another name")
    if not csv.parent.is_dir():
        raise ConfigError(f"{flag} {csv}: the folder {csv.parent} does not exist; make it first")


def explain_write_error(error: OSError, path: Path) -> PatchwordsError:
    """An OSError met while writing `path`, as a line that says what to do."""
    if error.errno == errno.ENOSPC:
        return ConfigError(f"the disk is full: {path} was not written; free some space")
    if error.errno in {errno.EACCES, errno.EROFS, errno.EPERM}:
        return ConfigError(f"{path} cannot be written: {error.strerror}; choose another --output")
    return ConfigError(f"{path} cannot be written: {error.strerror or error}")


# Times as a person reads them.


def format_duration(seconds: float) -> str:
    """Seconds in words; tenths of them only where there are few.

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
