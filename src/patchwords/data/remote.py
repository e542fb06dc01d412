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
from patchwords.files import explain_write_error
from patchwords.version import __version__

MAX_TRIES = 5  # in a row that bring nothing new
FIRST_RETRY_PAUSE = 1.0  # seconds after the first try; doubled after each
STORAGE_TIMEOUT = 60.0  # seconds without a byte
STORAGE_CHUNK_BYTES = 1 << 20  # bytes

REMOTE_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
FSSPEC_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
REINDEX_HINT = "put the former file back, or index it again by `patchwords index DATA --anew`"
RETRY_STATUS_CODES = {408, 425, 429}  # HTTP: not now; so is everything from 500 on


class _TransientError(Exception):
    """A fault that may be gone in a moment; its text is the reason."""


@dataclass(frozen=True)
class RemoteBody:
    """The bytes of a remote file from `start` on."""

    stream: IO[bytes]
    start: int  # 0 where the server cannot begin in the middle
    size: int  # bytes, of the whole file
    version: str = ""  # what the server calls this state of the file


def is_remote_url(path: str) -> bool:
    """Whether a path is an address such as https://host/x.tar or s3://bucket/x.tar."""
    return REMOTE_URL.match(path) is not None


def download_file(
    url: str, path: Path, expected: int | None = None, reserve: Callable[[int], None] | None = None
) -> int:
    """Bring the whole file at `url` to `path`; -> its bytes.

    `reserve` is told the bytes before the first comes. Raises StorageError: at once where the file
    is not there or has not `expected` bytes, after `MAX_TRIES` tries in a row that bring nothing new
    otherwise. Raises ConfigError where `path` cannot be written.
    """
    have, most, size, version = 0, 0, expected, ""
    failed, reason = 0, ""
    with _open_for_writing(path) as file:
        while failed < MAX_TRIES:
            if failed:
                time.sleep(FIRST_RETRY_PAUSE * 2 ** (failed - 1))
            try:
                with _open_body(url, have, version) as body:
                    _refuse_other_size(url, body.size, size)
                    if reserve is not None:
                        reserve(body.size)
                    have, size, version = body.start, body.size, body.version
                    file.seek(have)
                    while chunk := _read_chunk(body):
                        _write_chunk(file, chunk, path)
                        have += len(chunk)
                if have == size:
                    file.truncate()
                    return have
                reason = f"{have:,} of {size:,} bytes came, then the line broke"
            except _TransientError as fault:
                reason = str(fault)
            failed = 1 if have > most else failed + 1
            most = max(most, have)
    raise StorageError(f"{url}: cannot be read after {MAX_TRIES} tries: {reason}")


def list_matching_urls(url: str) -> list[str]:
    """The addresses that a pattern with * stands for, sorted; raises StorageError."""
    scheme = url.partition("://")[0].lower()
    if scheme in {"http", "https"}:
        raise StorageError(
            f"{url}: a web server does not list its files, so * cannot be used; write the numbers "
            "as {000..099}"
        )
    try:
        found = _get_filesystem(url).glob(url)
    except Exception as fault:  # whatever the storage's own package raises
        raise StorageError(f"{url}: cannot be listed: {_format_fault(fault)}") from fault
    return sorted(f"{scheme}://{path.removeprefix(f'{scheme}://')}" for path in found)


def _refuse_other_size(url: str, found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise StorageError(
            f"{url} has {found:,} bytes, but had {expected:,} when it was indexed; {REINDEX_HINT}"
        )


@contextmanager
def _open_for_writing(path: Path) -> Iterator[IO[bytes]]:
    """The file, opened for writing and flushed to the disk in the end."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as fault:
        raise explain_write_error(fault, path) from fault
    with open(descriptor, "r+b") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_chunk(file: IO[bytes], chunk: bytes, path: Path) -> None:
    try:
        file.write(chunk)
    except OSError as fault:
        raise explain_write_error(fault, path) from fault


def _read_chunk(body: RemoteBody) -> bytes:
    try:
        return body.stream.read(STORAGE_CHUNK_BYTES)
    except Exception as fault:  # a broken line, in the words of whichever package
        raise _TransientError(_format_fault(fault)) from fault


@contextmanager
def _open_body(url: str, start: int, version: str) -> Iterator[RemoteBody]:
    web = url.lower().startswith(("http://", "https://"))
    body = _open_web_body(url, start, version) if web else _open_storage_body(url, start)
    try:
        yield body
    finally:
        body.stream.close()


def _open_web_body(url: str, start: int, version: str) -> RemoteBody:
    headers = {"User-Agent": f"patchwords/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version  # of another state, the server sends all
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=STORAGE_TIMEOUT
        )
    except urllib.error.HTTPError as fault:
        said = f"the server says {fault.code} {fault.reason}"
        if fault.code in RETRY_STATUS_CODES or fault.code >= 500:
            raise _TransientError(said) from fault
        raise StorageError(f"{url}: {said}") from fault
    except (OSError, http.client.HTTPException) as fault:  # URLError, too, is an OSError
        raise _TransientError(_format_fault(getattr(fault, "reason", None) or fault)) from fault
    part = re.match(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range") or "")
    length = answer.headers.get("Content-Length")
    version = answer.headers.get("ETag") or ""
    if answer.status == http.client.PARTIAL_CONTENT and part:
        return RemoteBody(answer, int(part[1]), int(part[2]), version)
    if length is None:
        answer.close()
        raise StorageError(
            f"{url}: the server does not say how long the file is (no Content-Length); serve it as "
            "a plain file"
        )
    return RemoteBody(answer, 0, int(length), version)


def _open_storage_body(url: str, start: int) -> RemoteBody:
    storage = _get_filesystem(url)
    try:
        size = int(storage.info(url)["size"])
        stream = storage.open(url, "rb")
        stream.seek(start)
        return RemoteBody(stream, start, size)
    except FileNotFoundError as fault:
        raise StorageError(f"{url}: there is no such file") from fault
    except PermissionError as fault:
        raise StorageError(f"{url}: access is refused: {_format_fault(fault)}") from fault
    except Exception as fault:  # whatever the storage's own package raises
        raise _TransientError(_format_fault(fault)) from fault


def _get_filesystem(url: str) -> Any:
    """fsspec's file system for an address; asked for anew, because it does not outlive a fork."""
    import fsspec

    scheme = url.partition("://")[0].lower()
    try:
        return fsspec.filesystem(scheme)
    except ImportError as fault:
        package = FSSPEC_PACKAGES.get(scheme)
        how = f"pip install {package}" if package else _format_fault(fault)
        raise StorageError(f"{url}: {scheme}:// needs a package more: {how}") from fault
    except ValueError as fault:  # a scheme that fsspec does not know
        raise StorageError(
            f"{url}: {scheme}:// is no storage that is known; use https://, s3:// or gs://"
        ) from fault


def _format_fault(fault: object) -> str:
    return " ".join(str(fault).split()) or type(fault).__name__
