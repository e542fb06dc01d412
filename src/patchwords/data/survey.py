"""One pass over all images: what each of them is, and whether it can be read at all.

An image is decoded as small as its format allows (JPEG: an eighth), which is fast and yet reads
every byte of it, so that a truncated file is noticed.
"""

from __future__ import annotations

import io
import os
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image

from patchwords.data.decode import UPRIGHT, decode, image_size
from patchwords.data.examples import Examples, Reader
from patchwords.data.fingerprints import DECODED, digest, perceptual_hash
from patchwords.errors import DataError

CHUNK = 64  # images of one task: at a millisecond each, the task's own cost is lost in them
WORTH_A_POOL = 512  # images: below, starting processes takes longer than looking
BLANK = 8  # grey levels between the darkest and the brightest pixel
CAMERA_FORMATS = {"JPEG", "MPO", "TIFF", "WEBP"}  # to ask a PNG for EXIF may decode all of it
TOO_COARSE = 16  # shortest side, pixels: below, different images have equal hashes

Progress = Callable[[int, int], None]  # images seen, images in all


@dataclass(frozen=True, slots=True)
class Sight:
    """What one image turned out to be."""

    unreadable: str = ""  # why it cannot be decoded; nothing else is then known
    digest: bytes = b""  # of the file
    hash: int | None = None  # perceptual; None where it says nothing
    width: int = 0  # upright
    height: int = 0
    format: str = ""
    blank: bool = False
    oddities: tuple[str, ...] = ()  # rows of findings.CHECKS


def look(data: bytes) -> Sight:
    """Decode one image and describe it."""
    try:
        image = decode(data, smallest=DECODED)
        width, height = image_size(data)
    except DataError as error:
        return Sight(unreadable=str(error))
    except MemoryError:
        return Sight(unreadable="not enough memory to decode it")
    with Image.open(io.BytesIO(data)) as header:
        format_ = header.format or ""
        oddities = _oddities(header, data)
    darkest, brightest = image.convert("L").getextrema()
    return Sight(
        digest=digest(data),
        hash=perceptual_hash(image) if min(width, height) >= TOO_COARSE else None,
        width=width,
        height=height,
        format=format_,
        blank=brightest - darkest < BLANK,  # type: ignore[operator]  # one band: two numbers
        oddities=oddities,
    )


def _oddities(header: Image.Image, data: bytes) -> tuple[str, ...]:
    """The odd things that are read right all the same."""
    mode = header.mode
    deep_png = data.startswith(b"\x89PNG") and data[24:25] == b"\x10"  # IHDR's bit depth
    several = getattr(header, "is_animated", False) and header.format != "MPO"  # MPO: a preview
    found = {
        "cmyk": mode == "CMYK",
        "16-bit": mode.startswith(("I", "F")) or deep_png,
        "1-bit": mode == "1",
        "palette": mode in {"P", "PA"} and header.format != "GIF",  # a GIF has nothing else
        "alpha": mode in {"LA", "PA", "RGBA", "La", "RGBa"} or "transparency" in header.info,
        "rotated": _turned(header),
        "frames": several,
    }
    return tuple(name for name, true in found.items() if true)


def _turned(header: Image.Image) -> bool:
    """Whether EXIF has the image turned or mirrored."""
    if header.format not in CAMERA_FORMATS:
        return False
    try:
        return header.getexif().get(ExifTags.Base.Orientation) in UPRIGHT
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return False  # scrambled metadata, which decoding has survived


def look_at(reader: Reader, rows: np.ndarray) -> list[Sight]:
    """Describe these rows of a reader."""
    sights = []
    for row in rows.tolist():
        try:
            sights.append(look(reader(row)))
        except OSError as error:  # the file is gone, or may not be read
            sights.append(Sight(unreadable=error.strerror or str(error)))
        except DataError as error:  # the reader's: a damaged archive
            sights.append(Sight(unreadable=str(error)))
    return sights


def survey(
    splits: Mapping[str, Examples], *, workers: int | None = None, progress: Progress | None = None
) -> dict[str, list[Sight]]:
    """Look at every image of every split, in order, with `workers` processes.

    0 workers: in this process. None: as many as there are processors, if that is worth it.
    """
    total = sum(map(len, splits.values()))
    if workers is None:
        workers = processors() if total >= WORTH_A_POOL else 0
    tasks = [
        (name, examples.rows[start : start + CHUNK])
        for name, examples in splits.items()
        for start in range(0, len(examples), CHUNK)
    ]
    seen: dict[str, list[Sight]] = {name: [] for name in splits}
    done = 0
    for (name, _), sights in zip(tasks, _looked(splits, tasks, workers), strict=True):
        seen[name] += sights
        done += len(sights)
        if progress is not None:
            progress(done, total)
    return seen


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Task = tuple[str, np.ndarray]  # split, rows


def _looked(
    splits: Mapping[str, Examples], tasks: list[Task], workers: int
) -> Iterator[list[Sight]]:
    """What `look_at` gives for each task, in the order of the tasks."""
    readers = {name: examples.reader for name, examples in splits.items()}
    if workers == 0:
        for name, rows in tasks:
            yield look_at(readers[name], rows)
        return
    pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(readers,))
    try:
        futures: list[Future[list[Sight]]] = [pool.submit(_work, task) for task in tasks]
        for future in futures:
            yield future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died while looking at the images (out of memory, or a crash of an "
            "image library): ask for --workers 0 to stay in one process"
        ) from error
    finally:  # also when interrupted: what is not yet begun is not worth waiting for
        pool.shutdown(cancel_futures=True)


_readers: dict[str, Reader] = {}  # of a worker process: sent once, not with every task


def _start_worker(readers: dict[str, Reader]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends the work
    _readers.update(readers)


def _work(task: Task) -> list[Sight]:
    name, rows = task
    return look_at(_readers[name], rows)
