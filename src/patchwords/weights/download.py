"""Files from the web, once: cached, gone on with after a break, checked, and shown as they come."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import http.client
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from patchwords.errors import WeightsError
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
