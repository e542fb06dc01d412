"""The survey: one pass that decodes every image and describes it.

An image is decoded as small as its format allows (JPEG: an eighth), which is fast and yet reads
every byte of it, so that a truncated file is noticed.
"""

from __future__ import annotations

import io
import multiprocessing
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image

from patchwords.data.dataset import ImageDataset, ImageReader
from patchwords.data.decode import EXIF_TRANSPOSES, decode_image, read_image_size
from patchwords.data.doctor.fingerprints import MIN_DECODED_SIDE, hash_file_bytes, perceptual_hash
from patchwords.errors import DataError
from patchwords.processes import choose_start_method, count_usable_cores

IMAGES_PER_TASK = 64  # at a millisecond each, the task's own cost does not count
MIN_IMAGES_FOR_POOL = 512  # images: below, starting processes takes longer than looking
MAX_BLANK_RANGE = 8  # grey levels between the darkest and the brightest pixel
EXIF_FORMATS = {"JPEG", "MPO", "TIFF", "WEBP"}  # to ask a PNG for EXIF may decode all of it
MIN_HASH_SIDE = 16  # shortest side, pixels: below, different images have equal hashes

SurveyProgress = Callable[[int, int], None]  # images seen, images in all


@dataclass(frozen=True, slots=True)
class SurveyedImage:
    """The description of one image."""

    unreadable: str = ""  # why it cannot be decoded; nothing else is then known
    digest: bytes = b""  # of the file
    hash: int | None = None  # perceptual; None where it says nothing
    width: int = 0  # upright
    height: int = 0
    format: str = ""
    blank: bool = False
    oddities: tuple[str, ...] = ()  # rows of findings.CHECKS


def survey_image(data: bytes) -> SurveyedImage:
    """Decode one image and describe it."""
    try:
        image = decode_image(data, smallest=MIN_DECODED_SIDE)
        width, height = read_image_size(data)
    except DataError as error:
        return SurveyedImage(unreadable=str(error))
    except MemoryError:
        return SurveyedImage(unreadable="not enough memory to decode it")
    with Image.open(io.BytesIO(data)) as header:
        format_ = header.format or ""
        oddities = _oddities(header, data)
    darkest, brightest = image.convert("L").getextrema()
    return SurveyedImage(
        digest=hash_file_bytes(data),
        hash=perceptual_hash(image) if min(width, height) >= MIN_HASH_SIDE else None,
        width=width,
        height=height,
        format=format_,
        blank=brightest - darkest < MAX_BLANK_RANGE,  # type: ignore[operator]  # one band: two numbers
        oddities=oddities,
    )


def _oddities(header: Image.Image, data: bytes) -> tuple[str, ...]:
    """List oddities of an image that is read correctly."""
    mode = header.mode
    deep_png = data.startswith(b"\x89PNG") and data[24:25] == b"\x10"  # IHDR's bit depth
    several = getattr(header, "is_animated", False) and header.format != "MPO"  # MPO: a preview
    oddities = {
        "cmyk": mode == "CMYK",
        "16-bit": mode.startswith(("I", "F")) or deep_png,
        "1-bit": mode == "1",
        "palette": mode in {"P", "PA"} and header.format != "GIF",  # a GIF has nothing else
        "alpha": mode in {"LA", "PA", "RGBA", "La", "RGBa"} or "transparency" in header.info,
        "rotated": _is_rotated(header),
        "frames": several,
    }
    return tuple(name for name, true in oddities.items() if true)


def _is_rotated(header: Image.Image) -> bool:
    """Return whether EXIF has the image rotated or mirrored."""
    if header.format not in EXIF_FORMATS:
        return False
    try:
        return header.getexif().get(ExifTags.Base.Orientation) in EXIF_TRANSPOSES
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return False  # scrambled metadata, which decoding has survived


def survey_rows(reader: ImageReader, rows: np.ndarray) -> list[SurveyedImage]:
    """Survey these rows of a reader."""
    sights = []
    for row in rows.tolist():
        try:
            sights.append(survey_image(reader(row)))
        except OSError as error:  # the file is gone, or may not be read
            sights.append(SurveyedImage(unreadable=error.strerror or str(error)))
        except DataError as error:  # the reader's: a damaged archive
            sights.append(SurveyedImage(unreadable=str(error)))
    return sights


def survey_splits(
    splits: Mapping[str, ImageDataset],
    *,
    workers: int | None = None,
    progress: SurveyProgress | None = None,
) -> dict[str, list[SurveyedImage]]:
    """Survey every image of every split, in order, with `workers` processes.

    0 workers: in this process. None: as many as there are processors, if that is worth it.
    """
    total = sum(map(len, splits.values()))
    if workers is None:
        workers = count_usable_cores() if total >= MIN_IMAGES_FOR_POOL else 0
    tasks = [
        (name, examples.rows[start : start + IMAGES_PER_TASK])
        for name, examples in splits.items()
        for start in range(0, len(examples), IMAGES_PER_TASK)
    ]
    seen: dict[str, list[SurveyedImage]] = {name: [] for name in splits}
    done = 0
    for (name, _), sights in zip(tasks, _survey_tasks(splits, tasks, workers), strict=True):
        seen[name] += sights
        done += len(sights)
        if progress is not None:
            progress(done, total)
    return seen


SurveyTask = tuple[str, np.ndarray]  # split, rows


def _survey_tasks(
    splits: Mapping[str, ImageDataset], tasks: list[SurveyTask], workers: int
) -> Iterator[list[SurveyedImage]]:
    """Run `survey_rows` on each task, in the order of the tasks."""
    readers = {name: examples.reader for name, examples in splits.items()}
    if workers == 0:
        for name, rows in tasks:
            yield survey_rows(readers[name], rows)
        return
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context(choose_start_method()),
        initializer=_start_worker,
        initargs=(readers,),
    )
    try:
        futures: list[Future[list[SurveyedImage]]] = [
            pool.submit(_run_task, task) for task in tasks
        ]
        for future in futures:
            yield future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died while looking at the images (out of memory, or a crash of an "
            "image library): ask for --workers 0 to stay in one process"
        ) from error
    finally:  # also when interrupted: what is not yet begun is not worth waiting for
        pool.shutdown(cancel_futures=True)


_readers: dict[str, ImageReader] = {}  # of a worker process: sent once, not with every task


def _start_worker(readers: dict[str, ImageReader]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends the work
    _readers.update(readers)


def _run_task(task: SurveyTask) -> list[SurveyedImage]:
    name, rows = task
    return survey_rows(_readers[name], rows)
