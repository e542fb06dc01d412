"""Downloads: http and https by the standard library, s3://, gs:// and others by fsspec.

Transient errors (a broken connection, a busy server) are retried with growing pauses, and a
download continues where it stopped if the server supports ranges. Weights go to a cache that
processes share; parts of unfinished files are kept there for the next attempt.
"""

from __future__ import annotations

import base64
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
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from patchwords.errors import StorageError, WeightsError
from patchwords.files import cache_folder, explain_write_error, file_lock
from patchwords.version import __version__

CACHED_SCHEMES = ("https",)
MAX_TRIES = 5  # attempts in a row that bring nothing new
CACHED_MAX_TRIES = 3  # while a user waits
FIRST_RETRY_PAUSE = 1.0  # seconds after the first attempt, doubled after each
READ_TIMEOUT = 60.0  # seconds without a byte
CHUNK_BYTES = 1 << 20

REMOTE_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
FSSPEC_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
REINDEX_HINT = "put the former file back, or index it again by `patchwords index DATA --anew`"
RETRY_STATUS_CODES = {408, 425, 429}  # besides all from 500 on

Progress = Callable[[int, int], None]  # (bytes so far, bytes of the whole file)


_forbidden: ContextVar[bool] = ContextVar("downloads_forbidden", default=False)


@contextmanager
def forbid_downloads(forbidden: bool = True) -> Iterator[None]:
    """Inside, weights come from this machine or are refused: `--offline`."""
    token = _forbidden.set(forbidden)
    try:
        yield
    finally:
        _forbidden.reset(token)


def are_downloads_forbidden() -> bool:
    """Return whether weights may only come from this machine."""
    return _forbidden.get()


class _TransientError(Exception):
    """A fault that may be gone in a moment; its text is the reason."""


@dataclass(frozen=True)
class RemoteBody:
    """The bytes of a remote file from `start` on."""

    stream: IO[bytes]
    start: int  # 0 if the server cannot begin in the middle
    size: int  # bytes of the whole file
    version: str = ""  # what the server calls this state of the file: its ETag
    md5: bytes | None = None  # of the whole file, where the server names it


def is_remote_url(path: str) -> bool:
    """Return whether a path is an address such as https://host/x.tar or s3://bucket/x.tar."""
    return REMOTE_URL.match(path) is not None


def fetch_cached(url: str) -> Path:
    """Download `url` into the cache unless it is there; return its path.

    Processes that want the same file take turns. An interrupted download leaves its part, and the
    next call continues it. Raises WeightsError.
    """
    path = get_web_cache_path(url)
    if path.is_file():
        return path
    if are_downloads_forbidden():
        raise WeightsError(
            f"{url} is not on this machine, and --offline forbids the download; put it at {path}"
        )
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_name(f".{path.name}.lock")):
            if not path.is_file():
                with _show_progress(path.name) as progress:
                    download_file(
                        url, part, resume=True, max_tries=CACHED_MAX_TRIES, progress=progress
                    )
                os.replace(part, path)
    except StorageError as error:
        raise WeightsError(
            f"{error}; check the name, or download the file elsewhere and put it at {path}"
        ) from error
    except OSError as error:
        raise explain_write_error(error, path) from error
    return path


def get_web_cache_path(url: str) -> Path:
    """Return the cache path of a web file: by host and path, so that equal names do not meet."""
    parts = urlsplit(url)
    if parts.scheme not in CACHED_SCHEMES or not parts.hostname:
        raise WeightsError(f"{url}: only https addresses are fetched")
    steps = [step for step in unquote(parts.path).split("/") if step]
    if not steps or any(step in {".", ".."} for step in steps):
        raise WeightsError(f"{url}: this address names no file")
    clean = [re.sub(r"[^\w.+@=-]", "_", step) for step in steps]
    return cache_folder().joinpath("web", parts.hostname, *clean)


def download_file(
    url: str,
    path: Path,
    expected: int | None = None,
    reserve: Callable[[int], None] | None = None,
    *,
    resume: bool = False,
    max_tries: int = MAX_TRIES,
    progress: Progress | None = None,
) -> int:
    """Download `url` to `path`; return the number of bytes.

    Args:
        expected: bytes that the file must have.
        reserve: is told the bytes of the whole file before the first is written.
        resume: continue what an earlier call left at `path`, and check the server's MD5 sum.
        max_tries: attempts in a row that bring nothing new.

    Raises StorageError (at once if the file is missing, of another size or damaged) and
    ConfigError if `path` cannot be written.
    """
    with _open_for_writing(path) as file:
        transfer = _Transfer(url, path, file, expected, resume)
        failures, reason = 0, ""
        while failures < max_tries:
            if failures:
                time.sleep(FIRST_RETRY_PAUSE * 2 ** (failures - 1))
            before = transfer.most
            try:
                if transfer.attempt(reserve, progress):
                    return transfer.have
                reason = transfer.describe()
            except _TransientError as fault:
                reason = str(fault)
            failures = 1 if transfer.most > before else failures + 1
    raise StorageError(f"{url}: cannot be read after {max_tries} tries: {reason}")


@dataclass
class _Transfer:
    """The state of a download over several attempts."""

    url: str
    path: Path
    file: IO[bytes]
    expected: int | None
    resume: bool
    size: int = -1  # bytes of the remote file; -1 = not known yet
    have: int = 0
    most: int = 0  # bytes that any attempt reached
    version: str = ""

    def __post_init__(self) -> None:
        if self.resume:
            self.have = self.most = self.file.seek(0, os.SEEK_END)
            if self._version_path.exists():
                self.version = self._version_path.read_text("utf-8")

    def attempt(self, reserve: Callable[[int], None] | None, progress: Progress | None) -> bool:
        """Read on until the connection ends; return whether the file is complete."""
        with _open_body(self.url, self.have, self.version) as body:
            self._begin(body)
            if reserve is not None:
                reserve(body.size)
            while chunk := _read_chunk(body):
                _write_chunk(self.file, chunk, self.path)
                self.have += len(chunk)
                self.most = max(self.most, self.have)
                if progress is not None:
                    progress(self.have, self.size)
        if self.have != self.size:
            return False
        self.file.truncate()
        if self.resume:
            self._version_path.unlink(missing_ok=True)
            self._check_sum(body.md5)
        return True

    def describe(self) -> str:
        return f"{self.have:,} of {self.size:,} bytes came, then the connection broke"

    def _begin(self, body: RemoteBody) -> None:
        """Go to where the body begins; of a part, keep only what the body continues."""
        if self.expected not in {None, body.size}:
            raise StorageError(
                f"{self.url} has {body.size:,} bytes, but had {self.expected:,} when it was "
                f"indexed; {REINDEX_HINT}"
            )
        if body.start and self.size not in {-1, body.size}:
            self.have, self.version = 0, ""
            raise _TransientError("the file has changed during the download")
        self.have, self.size, self.version = body.start, body.size, body.version
        if self.resume:
            self.file.truncate(body.start)
            self._version_path.write_text(body.version, "utf-8")
        self.file.seek(body.start)

    def _check_sum(self, md5: bytes | None) -> None:
        if md5 is None:
            return
        digest = hashlib.md5(usedforsecurity=False)
        self.file.seek(0)
        while chunk := self.file.read(CHUNK_BYTES):
            digest.update(chunk)
        if digest.digest() != md5:
            self.file.truncate(0)
            raise StorageError(
                f"{self.url} came damaged (its MD5 sum is wrong); run the command again"
            )

    @property
    def _version_path(self) -> Path:
        """Where the version of a part is kept for the next process."""
        return self.path.with_name(f"{self.path.name}.version")


@contextmanager
def _open_for_writing(path: Path) -> Iterator[IO[bytes]]:
    """Open the file without emptying it, and flush it to the disk in the end."""
    try:
        path.touch(0o644)
        file = open(path, "r+b")  # noqa: SIM115 - closed below
    except OSError as fault:
        raise explain_write_error(fault, path) from fault
    with file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_chunk(file: IO[bytes], chunk: bytes, path: Path) -> None:
    """Write and name errors of the disk, which are no errors of the network."""
    try:
        file.write(chunk)
    except OSError as fault:
        raise explain_write_error(fault, path) from fault


@contextmanager
def _show_progress(name: str) -> Iterator[Progress]:
    """Show a bar on a terminal, one line elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=None)

        def update(have: int, size: int) -> None:
            if bars.tasks[task].total is None and not console.is_terminal:
                print(f"fetching {name} ({size / 2**20:,.0f} MiB)", file=sys.stderr)
            bars.update(task, completed=have, total=size)

        yield update


# One attempt: opening a remote file at a byte.


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
            headers["If-Range"] = version  # of another version, the server sends all
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=READ_TIMEOUT
        )
    except urllib.error.HTTPError as fault:
        if fault.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return _open_web_body(url, 0, "")  # the remote file is shorter than what is here
        reason = f"the server says {fault.code} {fault.reason}"
        if fault.code in RETRY_STATUS_CODES or fault.code >= 500:
            raise _TransientError(reason) from fault
        raise StorageError(f"{url}: {reason}") from fault
    except (OSError, http.client.HTTPException) as fault:  # URLError, too, is an OSError
        raise _TransientError(_format_fault(getattr(fault, "reason", None) or fault)) from fault
    part = re.match(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range") or "")
    length = response.headers.get("Content-Length")
    version = response.headers.get("ETag") or ""
    md5 = _parse_md5(response.headers.get_all("x-goog-hash") or [])
    if response.status == http.client.PARTIAL_CONTENT and part:
        return RemoteBody(response, int(part[1]), int(part[2]), version, md5)
    if length is None:
        response.close()
        raise StorageError(
            f"{url}: the server does not say how long the file is (no Content-Length); serve it as "
            "a plain file"
        )
    return RemoteBody(response, 0, int(length), version, md5)


def _parse_md5(sums: list[str]) -> bytes | None:
    """Return the MD5 among the sums that Google's storage sends: ["crc32c=...,md5=..."]."""
    for part in ",".join(sums).split(","):
        kind, _, value = part.strip().partition("=")
        if kind == "md5":
            return base64.b64decode(value)
    return None


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


def _read_chunk(body: RemoteBody) -> bytes:
    try:
        return body.stream.read(CHUNK_BYTES)
    except Exception as fault:  # a broken connection, as each package reports it
        raise _TransientError(_format_fault(fault)) from fault


def list_matching_urls(url: str) -> list[str]:
    """Return the addresses that match a pattern with *, sorted; raises StorageError."""
    scheme = url.partition("://")[0].lower()
    if scheme in {"http", "https"}:
        raise StorageError(
            f"{url}: a web server does not list its files, so * cannot be used; write the numbers "
            "as {000..099}"
        )
    try:
        paths = _get_filesystem(url).glob(url)
    except Exception as fault:  # whatever the storage's own package raises
        raise StorageError(f"{url}: cannot be listed: {_format_fault(fault)}") from fault
    return sorted(f"{scheme}://{path.removeprefix(f'{scheme}://')}" for path in paths)


def _get_filesystem(url: str) -> Any:
    """Return fsspec's file system for an address; new each time, as it does not outlive a fork."""
    import fsspec

    scheme = url.partition("://")[0].lower()
    try:
        return fsspec.filesystem(scheme)
    except ImportError as fault:
        package = FSSPEC_PACKAGES.get(scheme)
        how = f"pip install {package}" if package else _format_fault(fault)
        raise StorageError(f"{url}: {scheme}:// needs another package: {how}") from fault
    except ValueError as fault:  # a scheme that fsspec does not know
        raise StorageError(
            f"{url}: {scheme}:// is not a known storage; use https://, s3:// or gs://"
        ) from fault


def _format_fault(fault: object) -> str:
    return " ".join(str(fault).split()) or type(fault).__name__
