"""Load test of the app: photos per second, latency, memory, and hostile uploads.

    python benchmarks/app_load.py RUN [--seconds 20] [--clients 16] [--hostile 1000]

Starts `patchwords app RUN` on this machine and lets clients send POST /predict without a pause;
a request that is refused because of too many others (429) is repeated. Prints photos per second,
latencies, and the app's memory in the middle and at the end. Then sends hostile uploads, each of
which must be refused by a status of 400 to 499, and one more photo. Exit code 1 if anything fails.
Needs Linux (/proc) and the extra `app`.
"""

from __future__ import annotations

import argparse
import http.client
import io
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image

MIB = 2**20
GROWTH = 64 * MIB  # of memory between the middle and the end that is still called flat


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", help="a run folder or a model folder")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--hostile", type=int, default=1000)
    parser.add_argument("--side", type=int, default=512, help="pixels of the photos that are sent")
    asked = parser.parse_args()
    photos = [photo(seed, asked.side) for seed in range(8)]
    with serving(asked.run, photos[0]) as (port, process):
        good = load(port, process, photos, asked.clients, asked.seconds)
        if asked.hostile:
            good &= hostile(port, process, photos[0], asked.hostile)
    return 0 if good else 1


def photo(seed: int, side: int) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


@contextmanager
def serving(run: str, neighbour: bytes) -> Iterator[tuple[int, int]]:
    """The app in a process of its own; -> its port and process id. One training photo is enough."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "0.jpg").write_bytes(neighbour)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "patchwords", "app", run, "--port", "0"),
                *("--cache", "none", "--data", folder),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found is None:
                raise SystemExit(f"the app did not start: {line}")
            yield int(found[1]), process.pid
        finally:
            process.terminate()
            if code := process.wait(30):
                raise SystemExit(f"the app ended with exit code {code}")


def load(port: int, process: int, photos: list[bytes], clients: int, seconds: float) -> bool:
    """All clients ask without a pause; -> whether every answer was good and memory stayed flat."""
    for image in photos:  # what is made at the first question is not measured
        post(port, image)
    statuses: Counter[int] = Counter()
    waits: list[float] = []
    until = time.monotonic() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
        dice = random.Random(number)
        while (began := time.monotonic()) < until:
            status = post(port, dice.choice(photos), connection)
            statuses[status] += 1
            if status == 429:
                time.sleep(0.01)
            else:
                waits.append(time.monotonic() - began)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    middle = resident(process)
    for thread in threads:
        thread.join()
    end = resident(process)
    waits.sort()
    print(
        f"{len(waits) / seconds:.1f} photos/s from {clients} clients; "
        f"median {1000 * statistics.median(waits):.0f} ms, "
        f"99 % within {1000 * waits[int(0.99 * (len(waits) - 1))]:.0f} ms; "
        f"statuses {dict(statuses)}; memory {middle / MIB:.0f} MiB, then {end / MIB:.0f} MiB",
        flush=True,
    )
    return set(statuses) <= {200, 429} and end - middle < GROWTH


def hostile(port: int, process: int, good: bytes, count: int) -> bool:
    """Uploads that mean harm; -> whether each was refused, and a good one is answered after all."""
    before = resident(process)
    dice = random.Random(0)
    statuses: Counter[int] = Counter()
    for number in range(count):
        statuses[post(port, harm(dice, number, good))] += 1
    end, after = resident(process), post(port, good)
    print(
        f"hostile: {count} uploads, statuses {dict(sorted(statuses.items()))}; then a photo: "
        f"{after}; memory {before / MIB:.0f} MiB, then {end / MIB:.0f} MiB",
        flush=True,
    )
    return all(400 <= status < 500 for status in statuses) and after == 200


def harm(dice: random.Random, number: int, good: bytes) -> bytes:
    """One of eight kinds, each different every time."""
    kinds = (
        lambda: good[: dice.randrange(2, len(good) // 2)],  # truncated
        lambda: dice.randbytes(dice.randrange(1, 10_000)),  # noise
        lambda: bomb(dice.randrange(20_000, 2**31), dice.randrange(20_000, 2**31)),
        lambda: bomb(9_000, 6_000 + dice.randrange(999)),  # just too large
        lambda: b"GIF89a" + dice.randbytes(dice.randrange(4, 5_000)),
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg'>" + b"<g>" * dice.randrange(999),
        lambda: b"PK\x03\x04" + dice.randbytes(200),
        lambda: bytes(20 * MIB + 1 + dice.randrange(99)) if number % 40 == 7 else b"",
    )
    return kinds[number % len(kinds)]()


def bomb(width: int, height: int) -> bytes:
    """A PNG that is small to send."""

    def chunk(name: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(MIB))
    parts = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def post(port: int, image: bytes, connection: http.client.HTTPConnection | None = None) -> int:
    """-> the status; a connection of its own where none is given"""
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    own.request("POST", "/predict", image, {"Content-Type": "application/octet-stream"})
    answer = own.getresponse()
    answer.read()
    if connection is None:
        own.close()
    return answer.status


def resident(process: int) -> int:
    """Bytes of memory that the app has now."""
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
