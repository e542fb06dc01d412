"""Batches of decoded images, the same whatever the number of workers.

A torch DataLoader moves the work; what it moves is ours. Each item is a whole batch: the main
process sends a list of places, a worker decodes them into a slot of memory that both share, and
sends back a few numbers. The slots are anonymous shared memory, made before the workers are
forked: not bound by the size of /dev/shm (64 MB in a container), where the DataLoader's own way
ends in a bus error, and several times faster than sending the pixels through a pipe.

An image that cannot be read is left out of its batch and named in `Batch.bad`.
Sizes: B batch (fewer where images were bad), C channels, H W image.
"""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import read_pixels
from patchwords.data.preprocess import Preprocess
from patchwords.data.sampler import SampleKey
from patchwords.errors import ConfigError, DataError, StorageError

MAX_PREFETCH_BYTES = 2 << 30  # bytes of decoded batches that may wait, all workers together
MAX_WORKERS = 8


@dataclass(frozen=True)
class ImageBatch:
    """What the loader gives; images stay uint8 until `Preprocess.normalise`."""

    images: torch.Tensor  # uint8 [B, C, H, W], in channels-last memory
    labels: torch.Tensor  # int64 [B]
    indices: torch.Tensor  # int64 [B], the position in the examples
    epochs: torch.Tensor  # int64 [B]
    repeats: torch.Tensor  # int64 [B], see `SampleKey`
    bad: list[tuple[int, str]]  # (index, reason) of each image that was left out

    @property
    def places(self) -> list[SampleKey]:
        columns = (self.epochs.tolist(), self.indices.tolist(), self.repeats.tolist())
        return [SampleKey(*row) for row in zip(*columns, strict=True)]


class Transform(Protocol):
    """Encoded bytes, seen at a place -> uint8 [H, W, C]. Picklable."""

    @property
    def preprocess(self) -> Preprocess: ...

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int) -> np.ndarray: ...


@dataclass(frozen=True)
class EvalTransform:
    """What evaluation sees of an image: the same at every place."""

    preprocess: Preprocess

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int) -> np.ndarray:
        return self.preprocess.resize_and_crop(read_pixels(data, self.preprocess.smallest))


def default_num_workers(processes: int = 1) -> int:
    """Workers for each of the training processes of this machine; one core each is left to them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(0, min(MAX_WORKERS, (cores or 1) // processes - 1))


def load_batches(
    examples: ImageDataset,
    view: Transform,
    plan: Iterable[Sequence[SampleKey]],
    workers: int = 0,
    pin: bool = False,
    reached: Callable[[SampleKey], None] | None = None,
) -> Iterator[ImageBatch]:
    """The batches of a plan (see `plan.train_plan`), in its order; its first is its largest.

    `pin` gives page-locked memory, from which a copy to a GPU need not wait. `reached` is told the
    first place of every batch before it is read, in the process that reads it. Raises StorageError
    where images lie elsewhere and cannot be reached: they are not bad, and may be there tomorrow.
    """
    steps = iter(plan)
    first = next(steps, None)
    if first is None:
        return
    source = _DecodeSource(examples, view, reached)
    plan = itertools.chain([first], steps)
    if workers == 0:
        for places in plan:
            pixels = np.empty((len(places), *source.shape), np.uint8)
            yield _batch(pixels, *source.fill(places, pixels), pin=False)
    else:
        yield from _from_workers(source, plan, len(first), workers, pin)


def load_eval_batches(
    examples: ImageDataset,
    preprocess: Preprocess,
    batch_size: int,
    workers: int = 0,
    pin: bool = False,
) -> Iterator[ImageBatch]:
    """Every example once, in order; the last batch may be smaller, and none is dropped."""
    starts = range(0, len(examples), batch_size)
    plan = (
        [SampleKey(0, i) for i in range(start, min(start + batch_size, len(examples)))]
        for start in starts
    )
    return load_batches(examples, EvalTransform(preprocess), plan, workers, pin)


class _DecodeSource:
    """What the workers need of the examples, and no more: the keys stay in the main process."""

    def __init__(
        self, examples: ImageDataset, view: Transform, reached: Callable[[SampleKey], None] | None
    ) -> None:
        self.reader, self.rows, self.labels = examples.reader, examples.rows, examples.labels
        self.view, self.reached = view, reached
        self.shape = (*view.preprocess.image_size, view.preprocess.channels)  # H, W, C

    def fill(
        self, places: Sequence[SampleKey], pixels: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[int, str]]]:
        """Decode into pixels [B, H, W, C]; gives int64 [good, 4] (label and place), and the bad."""
        if self.reached is not None:
            self.reached(places[0])
        good: list[tuple[int, ...]] = []
        bad = []
        for place in places:
            try:
                data = self.reader(int(self.rows[place.sample]))
                pixels[len(good)] = self.view(data, *place)
            except (DataError, OSError) as error:
                bad.append((place.sample, str(error) or type(error).__name__))
            else:
                good.append((int(self.labels[place.sample]), *place))
        return np.array(good, np.int64).reshape(-1, 4), bad


def _batch(
    pixels: np.ndarray, table: np.ndarray, bad: list[tuple[int, str]], pin: bool
) -> ImageBatch:
    images = torch.from_numpy(pixels[: len(table)])  # [B, H, W, C]
    if pin:
        images = images.pin_memory()
    labels, epochs, indices, repeats = torch.from_numpy(table).T.contiguous()  # each [B]
    return ImageBatch(images.permute(0, 3, 1, 2), labels, indices, epochs, repeats, bad)


class _SharedBatches(Dataset[Any]):
    """(slot, places) -> the slot is filled; what comes back is small."""

    def __init__(self, source: _DecodeSource, slots: np.ndarray) -> None:
        self.source, self.slots = source, slots  # [slots, B, H, W, C]

    def __getitem__(self, task: tuple[int, Sequence[SampleKey]]) -> Any:
        slot, places = task
        try:
            return slot, *self.source.fill(places, self.slots[slot])
        except (StorageError, ConfigError) as error:  # raised here, it would come with a traceback
            return slot, None, error


def _from_workers(
    source: _DecodeSource, plan: Iterable[Sequence[SampleKey]], size: int, workers: int, pin: bool
) -> Iterator[ImageBatch]:
    each = size * int(np.prod(source.shape))  # bytes of a batch
    ahead = max(1, min(4, MAX_PREFETCH_BYTES // (each * workers)))  # batches waiting per worker
    count = ahead * workers + 1  # and the one that is being copied out
    memory = mmap.mmap(-1, count * each)
    slots = np.frombuffer(memory, np.uint8).reshape(count, size, *source.shape)
    loader = DataLoader(
        _SharedBatches(source, slots),
        sampler=_SlotSampler(plan, count),
        batch_size=None,  # an item is a whole batch
        collate_fn=_identity,
        num_workers=workers,
        prefetch_factor=ahead,
        multiprocessing_context="fork",  # the slots are inherited, and nothing is imported anew
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # else a draw from the global one, for seeds nobody uses
    )
    iterator = iter(loader)
    while True:
        try:
            slot, table, bad = next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            if "DataLoader worker" not in str(error) or "Traceback" in str(error):
                raise  # a fault in our own code: its traceback is what helps
            line = str(error).splitlines()[0]
            raise DataError(
                f"a data worker died ({line}); if memory ran out, use fewer workers"
            ) from error
        if table is None:
            del iterator  # ends the workers now, and not when the traceback is forgotten
            raise bad
        # Copied at once: the slot is filled again after the next batch is asked for.
        kept = slots[slot, : len(table)]
        yield _batch(kept if pin else kept.copy(), table, bad, pin)


class _SlotSampler:
    """The plan, each batch with the slot it is decoded into: round and round."""

    def __init__(self, plan: Iterable[Sequence[SampleKey]], slots: int) -> None:
        self.plan, self.slots = plan, slots

    def __iter__(self) -> Iterator[tuple[int, Sequence[SampleKey]]]:
        for number, places in enumerate(self.plan):
            yield number % self.slots, places


def _identity(item: Any) -> Any:
    return item


def _start_worker(worker: int) -> None:
    """Ctrl-C and SIGTERM are for the main process, which may still want batches.

    Both may be sent to all processes of a job at once; a worker that died of it would break off
    the main process while it writes its checkpoint. Only the parent's own SIGTERM ends a worker.
    (The DataLoader itself has set one torch thread, and ends a worker whose parent is gone.)
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_exit_on_parent_signal, daemon=True).start()


def _exit_on_parent_signal() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


# How many processes should decode images, where nobody said.


SMALL_IMAGE_BYTES = (
    8192  # bytes; a thumbnail decodes in less time than a CPU takes to learn from it
)


def choose_num_workers(examples: ImageDataset, cuda: bool = False, processes: int = 1) -> int:
    """None for thumbnails that a CPU works on, else one per core but one.

    For each of the training processes of this machine, which share its cores.
    """
    tiny = len(examples) > 0 and float(examples.sizes.mean()) < SMALL_IMAGE_BYTES
    return 0 if tiny and not cuda else default_num_workers(processes)


# Images that cannot be read: a few are left out by name, more than a few end the work.


def check_bad_image_share(
    bad: Collection[tuple[str, str]], images: int, what: str, max_bad: float
) -> None:
    """Raise DataError where more than a share `max_bad` of the images is bad: (path, reason)."""
    if len(bad) > max_bad * images:
        path, reason = next(iter(bad))
        raise DataError(
            f"{len(bad)} of {images} {what} cannot be read, more than --max-bad {max_bad:.2%}; the "
            f"first: {path} ({reason}); `patchwords doctor` lists them all"
        )
