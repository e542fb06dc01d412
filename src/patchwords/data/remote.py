"""Files in storage elsewhere: http and https by the standard library, s3://, gs:// ... by fsspec.

What may be gone in a moment (a broken line, a busy server) is tried again, with pauses that double;
a download goes on from where the line broke, where the server can.
"""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from patchwords.errors import StorageError
from patchwords.files import explain
from patchwords.version import __version__

TRIES = 5  # in a row that bring nothing new
FIRST_PAUSE = 1.0  # seconds after the first try; doubled after each
TIMEOUT = 60.0  # seconds without a byte
CHUNK = 1 << 20  # bytes

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
ANEW = "put the former file back, or index it again by `patchwords index DATA --anew`"
BUSY = {408, 425, 429}  # HTTP: not now; so is everything from 500 on


class _Fleeting(Exception):
    """A fault that may be gone in a moment; its text is the reason."""


@dataclass(frozen=True)
class Body:
    """The bytes of a remote file from `start` on."""

    stream: IO[bytes]
    start: int  # 0 where the server cannot begin in the middle
    size: int  # bytes, of the whole file
    version: str = ""  # what the server calls this state of the file


def is_remote(path: str) -> bool:
    """Whether a path is an address such as https://host/x.tar or s3://bucket/x.tar."""
    return ADDRESS.match(path) is not None


def download(
    url: str, path: Path, expected: int | None = None, reserve: Callable[[int], None] | None = None
) -> int:
    """Bring the whole file at `url` to `path`; -> its bytes.

    `reserve` is told the bytes before the first comes. Raises StorageError: at once where the file
    is not there or has not `expected` bytes, after `TRIES` tries in a row that bring nothing new
    otherwise. Raises ConfigError where `path` cannot be written.
    """
    have, most, size, version = 0, 0, expected, ""
    failed, reason = 0, ""
    with _written(path) as file:
        while failed < TRIES:
            if failed:
                time.sleep(FIRST_PAUSE * 2 ** (failed - 1))
            try:
                with _body(url, have, version) as body:
                    _refuse_other_size(url, body.size, size)
                    if reserve is not None:
                        reserve(body.size)
                    have, size, version = body.start, body.size, body.version
                    file.seek(have)
                    while chunk := _read(body):
                        _write(file, chunk, path)
                        have += len(chunk)
                if have == size:
                    file.truncate()
                    return have
                reason = f"{have:,} of {size:,} bytes came, then the line broke"
            except _Fleeting as fault:
                reason = str(fault)
            failed = 1 if have > most else failed + 1
            most = max(most, have)
    raise StorageError(f"{url}: cannot be read after {TRIES} tries: {reason}")


def matching(url: str) -> list[str]:
    """The addresses that a pattern with * stands for, sorted; raises StorageError."""
    scheme = url.partition("://")[0].lower()
    if scheme in {"http", "https"}:
        raise StorageError(
            f"{url}: a web server does not list its files, so * cannot be used; write the numbers "
            "as {000..099}"
        )
    try:
        found = _storage(url).glob(url)
    except Exception as fault:  # whatever the storage's own package raises
        raise StorageError(f"{url}: cannot be listed: {_line(fault)}") from fault
    return sorted(f"{scheme}://{path.removeprefix(f'{scheme}://')}" for path in found)


def _refuse_other_size(url: str, found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise StorageError(
            f"{url} has {found:,} bytes, but had {expected:,} when it was indexed; {ANEW}"
        )


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """The file, opened for writing and flushed to the disk in the end."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as fault:
        raise explain(fault, path) from fault
    with open(descriptor, "r+b") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write(file: IO[bytes], chunk: bytes, path: Path) -> None:
    try:
        file.write(chunk)
    except OSError as fault:
        raise explain(fault, path) from fault


def _read(body: Body) -> bytes:
    try:
        return body.stream.read(CHUNK)
    except Exception as fault:  # a broken line, in the words of whichever package
        raise _Fleeting(_line(fault)) from fault


@contextmanager
def _body(url: str, start: int, version: str) -> Iterator[Body]:
    web = url.lower().startswith(("http://", "https://"))
    body = _ask_server(url, start, version) if web else _ask_storage(url, start)
    try:
        yield body
    finally:
        body.stream.close()


def _ask_server(url: str, start: int, version: str) -> Body:
    headers = {"User-Agent": f"patchwords/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version  # of another state, the server sends all
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as fault:
        said = f"the server says {fault.code} {fault.reason}"
        if fault.code in BUSY or fault.code >= 500:
            raise _Fleeting(said) from fault
        raise StorageError(f"{url}: {said}") from fault
    except (OSError, http.client.HTTPException) as fault:  # URLError, too, is an OSError
        raise _Fleeting(_line(getattr(fault, "reason", None) or fault)) from fault
    part = re.match(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range") or "")
    length = answer.headers.get("Content-Length")
    version = answer.headers.get("ETag") or ""
    if answer.status == http.client.PARTIAL_CONTENT and part:
        return Body(answer, int(part[1]), int(part[2]), version)
    if length is None:
        answer.close()
        raise StorageError(
            f"{url}: the server does not say how long the file is (no Content-Length); serve it as "
            "a plain file"
        )
    return Body(answer, 0, int(length), version)


def _ask_storage(url: str, start: int) -> Body:
    storage = _storage(url)
    try:
        size = int(storage.info(url)["size"])
        stream = storage.open(url, "rb")
        stream.seek(start)
        return Body(stream, start, size)
    except FileNotFoundError as fault:
        raise StorageError(f"{url}: there is no such file") from fault
    except PermissionError as fault:
        raise StorageError(f"{url}: access is refused: {_line(fault)}") from fault
    except Exception as fault:  # whatever the storage's own package raises
        raise _Fleeting(_line(fault)) from fault


def _storage(url: str) -> Any:
    """fsspec's file system for an address; asked for anew, because it does not outlive a fork."""
    import fsspec

    scheme = url.partition("://")[0].lower()
    try:
        return fsspec.filesystem(scheme)
    except ImportError as fault:
        package = PACKAGES.get(scheme)
        how = f"pip install {package}" if package else _line(fault)
        raise StorageError(f"{url}: {scheme}:// needs a package more: {how}") from fault
    except ValueError as fault:  # a scheme that fsspec does not know
        raise StorageError(
            f"{url}: {scheme}:// is no storage that is known; use https://, s3:// or gs://"
        ) from fault


def _line(fault: object) -> str:
    return " ".join(str(fault).split()) or type(fault).__name__
