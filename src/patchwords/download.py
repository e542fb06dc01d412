"""Files from the web, once: cached, gone on with after a break, checked, and shown as they come."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import http.client
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from patchwords.errors import StorageError, WeightsError
from patchwords.files import cache_folder, explain_write_error
from patchwords.version import __version__

WEB_SCHEMES = ("https",)
FETCH_TIMEOUT = 30  # seconds without a byte
FETCH_CHUNK_BYTES = 1 << 20  # bytes
HTTP_PARTIAL_CONTENT = 206  # HTTP: what comes goes on where we stopped


def get_web_cache_path(url: str) -> Path:
    """Where a file of the web is kept: by host and path, so that equal names do not meet."""
    parts = urlsplit(url)
    if parts.scheme not in WEB_SCHEMES or not parts.hostname:
        raise WeightsError(f"{url}: only https addresses are fetched")
    steps = [step for step in unquote(parts.path).split("/") if step]
    if not steps or any(step in {".", ".."} for step in steps):
        raise WeightsError(f"{url}: this address names no file")
    clean = [re.sub(r"[^\w.+@=-]", "_", step) for step in steps]
    return cache_folder().joinpath("web", parts.hostname, *clean)


def fetch_cached(url: str) -> Path:
    """The file at `url`, from the cache or else from the web.

    A broken transfer leaves what came; the next call goes on from there. The MD5 sum that Google's
    storage gives, or else the length, must be right. Raises WeightsError.
    """
    path = get_web_cache_path(url)
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with open(part, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # two programs that want the same file take turns
            if not path.is_file():
                _resume_fetch(url, path, part, file)
    except OSError as error:
        raise explain_write_error(error, path) from error
    return path


def _resume_fetch(url: str, path: Path, part: Path, file: IO[bytes]) -> None:
    """Write what is missing of `url` behind what `file` holds, check it, and put it in place."""
    have = file.seek(0, os.SEEK_END)
    try:
        with _open_response(url, have) as answer:
            if answer.status != HTTP_PARTIAL_CONTENT:
                file.truncate(have := 0)
            coming = answer.headers.get("Content-Length")
            length = have + int(coming) if coming else 0  # 0: the server does not say
            for chunk in _read_with_progress(answer, path.name, have, length):
                _write_fetched(file, chunk, path)
            digest = _parse_md5(answer.headers.get_all("x-goog-hash") or [])
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            file.truncate(0)  # the file on the web is another now: from the start
            return _resume_fetch(url, path, part, file)
        if error.code == http.client.NOT_FOUND:
            raise WeightsError(f"there is no {url}: see the spelling of its name") from error
        raise WeightsError(f"{url}: the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:  # URLError and TimeoutError are OSErrors
        raise WeightsError(_explain_unreachable(url, path, error)) from error
    file.flush()
    found = part.stat().st_size
    if length and found != length:
        raise WeightsError(
            f"{url}: {found:,} of {length:,} bytes came, then the line broke; the same command "
            "goes on from there"
        )
    if digest and _hash_md5(file) != digest:
        file.truncate(0)
        raise WeightsError(f"{url} came damaged (its MD5 sum is wrong); run the command again")
    os.replace(part, path)
    return None


def _write_fetched(file: IO[bytes], chunk: bytes, path: Path) -> None:
    """A fault of the disk is told from one of the network here, where it is met."""
    try:
        file.write(chunk)
    except OSError as error:
        raise explain_write_error(error, path) from error


def _explain_unreachable(url: str, path: Path, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return (
        f"{url} cannot be reached ({' '.join(str(reason).split())}): fetch it on another machine "
        f"and give its path, or put it at {path}"
    )


@contextmanager
def _open_response(url: str, have: int) -> Iterator[http.client.HTTPResponse]:
    headers = {"User-Agent": f"patchwords/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT) as answer:
        yield answer


def _read_with_progress(
    answer: http.client.HTTPResponse, name: str, have: int, length: int
) -> Iterator[bytes]:
    """The bytes as they come, with a bar on a terminal and one line elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"fetching {name} ({length / 2**20:,.0f} MiB)", file=sys.stderr)
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=length or None, completed=have)
        while chunk := answer.read(FETCH_CHUNK_BYTES):
            yield chunk
            progress.advance(task, len(chunk))


def _parse_md5(sums: list[str]) -> bytes | None:
    """The MD5 among the sums that Google's storage sends: ["crc32c=...,md5=..."]."""
    for one in ",".join(sums).split(","):
        kind, _, value = one.strip().partition("=")
        if kind == "md5":
            return base64.b64decode(value)
    return None


def _hash_md5(file: IO[bytes]) -> bytes:
    file.seek(0)
    digest = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(FETCH_CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()


# Files in storage elsewhere: http and https by the standard library, s3://, gs:// ... by fsspec.
#
# What may be gone in a moment (a broken line, a busy server) is tried again, with pauses that double;
# a download goes on from where the line broke, where the server can.


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
