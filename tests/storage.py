"""Storage for tests: shards of small images, and a web server that fails on request."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

LABELS = ("daisy", "rose", "tulip")


def png(number: int) -> bytes:
    """6x5 pixels of noise, whose first is the number."""
    pixels = np.random.default_rng(number).integers(0, 256, (5, 6, 3), np.uint8)
    pixels[0, 0, 0] = number
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, first: int, images: int) -> Path:
    """`images` images from number `first` on, the label of each beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number in range(first, first + images):
            label = LABELS[number % len(LABELS)].encode()
            for name, data in ((f"{number:03d}.png", png(number)), (f"{number:03d}.cls", label)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def write_parquet(path: Path, first: int, images: int) -> Path:
    """The same as a parquet in the Hugging Face layout, in groups of 3 rows."""
    import datasets
    import pyarrow.parquet

    numbers = range(first, first + images)
    table = datasets.Dataset.from_dict(
        {
            "img": [{"bytes": png(number), "path": f"{number}.png"} for number in numbers],
            "label": [number % len(LABELS) for number in numbers],
        },
        features=datasets.Features(
            {"img": datasets.Image(), "label": datasets.ClassLabel(names=list(LABELS))}
        ),
    )
    pyarrow.parquet.write_table(table.data.table, path, row_group_size=3)
    return path


def write_set(folder: Path, counts: tuple[int, ...], kind: str = "tar") -> int:
    """x-0.tar, x-1.tar, ... of so many images each; -> how many in all."""
    write = write_tar if kind == "tar" else write_parquet
    for number, images in enumerate(counts):
        write(folder / f"x-{number}.{kind}", sum(counts[:number]), images)
    return sum(counts)


class Server(ThreadingHTTPServer):
    """Serves a folder; `faults` are answered first, one a request: a status, or bytes to break
    off after."""

    daemon_threads = True
    folder: Path
    ranges = True
    length = True  # whether it says Content-Length
    sums = False  # whether it says the MD5 sum, as Google's storage does
    etags = False
    faults: list[int | str]
    until: int | None = None  # requests that are answered; then it is busy for ever
    asked: Counter[str]
    wanted: list[str | None]  # the Range of each request

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, path = self.server, self.server.folder / self.path.lstrip("/")
        server.asked[self.path.lstrip("/")] += 1
        server.wanted.append(self.headers["Range"])
        fault = server.faults.pop(0) if server.faults else None
        if server.until is not None and sum(server.asked.values()) > server.until:
            fault = 503
        if isinstance(fault, int):
            self.send_error(fault)
            return
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        part = self.headers["Range"] if server.ranges else None
        if self.headers["If-Range"] not in {None, etag}:
            part = None
        start = int(part.removeprefix("bytes=").rstrip("-")) if part else 0
        if start > len(data):
            self.send_error(416)
            return
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if server.length:
            self.send_header("Content-Length", str(len(data) - start))
        if server.etags:
            self.send_header("ETag", etag)
        if server.sums:
            md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
            self.send_header("x-goog-hash", f"crc32c=AAAAAA==,md5={md5}")
        self.end_headers()
        self.wfile.write(data[start : start + int(fault)] if fault else data[start:])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.folder, server.faults, server.asked, server.wanted = folder, [], Counter(), []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
