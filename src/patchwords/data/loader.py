"""Batches of decoded images, the same whatever the number of workers.

A torch DataLoader moves the work; what it moves is ours. Each item is a whole batch: the main
process sends a list of places, a worker decodes them into a slot of memory that both share, and
sends back a few numbers. Where workers are forked the slots are anonymous shared memory: not bound
by the size of /dev/shm (64 MB in a container), where the DataLoader's own way ends in a bus error.
Spawned workers get them as a mapped file. Both are several times faster than sending the pixels
through a pipe.

One sample may be seen in several views of different sizes, and its target may be an array of any
fixed shape: each view and each target has slots of its own.

An image that cannot be read is left out of its batch and named in `ImageBatch.bad`.
Sizes: B batch (fewer where images were bad), C channels, H W image.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import read_pixels
from patchwords.data.preprocess import Preprocess
from patchwords.data.sampler import SampleKey
from patchwords.errors import ConfigError, DataError, StorageError
from patchwords.files import GIB
from patchwords.processes import (
    StartMethod,
    check_main_guard,
    choose_start_method,
    count_usable_cores,
)

MAX_PREFETCH_BYTES = 2 << 30  # bytes of decoded batches that may wait, all workers together
MAX_WORKERS = 8


IMAGE = "image"  # the name of the view, where there is one


@dataclass(frozen=True)
class ImageBatch:
    """A batch of samples: their views, their targets, and which samples they are.

    Images stay uint8 until `Preprocess.normalise`. What a target is, its task knows.
    """

    views: Mapping[str, Tensor]  # by name: uint8 [B, C, H, W], in channels-last memory
    targets: Any  # int64 [B] class indices; or tensors [B, ...] by name, or what an objective made
    indices: Tensor  # int64 [B], position in the examples
    epochs: Tensor  # int64 [B]
    repeats: Tensor  # int64 [B], see `SampleKey`
    bad: list[tuple[int, str]] = field(default_factory=list)  # (index, reason) of what was left out

    @classmethod
    def of(cls, images: Tensor, targets: Any) -> ImageBatch:
        """A batch of one view whose samples are numbered from 0."""
        none = torch.zeros(len(images), dtype=torch.int64)
        return cls({IMAGE: images}, targets, torch.arange(len(images)), none, none)

    @property
    def images(self) -> Tensor:
        """The first view, which in most runs is the only one."""
        return next(iter(self.views.values()))

    @property
    def places(self) -> list[SampleKey]:
        columns = (self.epochs.tolist(), self.indices.tolist(), self.repeats.tolist())
        return [SampleKey(*row) for row in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, chosen: slice) -> ImageBatch:
        return self._map(lambda values: values[chosen])

    def to(self, device: torch.device | str) -> ImageBatch:
        """Views and targets on the device; which samples they are stays on the CPU."""

        def move(values: Tensor) -> Tensor:
            return values.to(device, non_blocking=torch.device(device).type == "cuda")

        views = map_tensors(move, self.views)
        return replace(self, views=views, targets=map_tensors(move, self.targets))

    def blank(self) -> ImageBatch:
        """One sample of zeros, shaped like those of the batch."""
        return self._map(lambda values: values.new_zeros((1, *values.shape[1:])))

    def _map(self, change: Callable[[Tensor], Tensor]) -> ImageBatch:
        return map_tensors(change, replace(self, bad=[]))


ValueT = TypeVar("ValueT")


def map_tensors(change: Callable[[Tensor], Tensor], value: ValueT) -> ValueT:
    """Apply `change` to every tensor in dicts, tuples, lists and dataclasses."""
    result: Any = value
    if isinstance(value, Tensor):
        result = change(value)
    elif isinstance(value, Mapping):
        result = {name: map_tensors(change, item) for name, item in value.items()}
    elif isinstance(value, tuple | list):
        result = type(value)(map_tensors(change, item) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        result = replace(value, **map_tensors(change, dict(vars(value))))
    return cast(ValueT, result)


class Transform(Protocol):
    """Encoded bytes, seen at a place -> an array of fixed shape and type. Picklable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array: (H, W, C) of a view."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int) -> np.ndarray: ...


Transforms = Mapping[str, Transform]  # by name
BYTE = np.dtype(np.uint8)


@dataclass(frozen=True)
class EvalTransform:
    """What evaluation sees of an image: the same at every place."""

    preprocess: Preprocess
    dtype = BYTE

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.preprocess.image_size, self.preprocess.channels)

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int) -> np.ndarray:
        return self.preprocess.resize_and_crop(read_pixels(data))


def default_num_workers(processes: int = 1) -> int:
    """Workers for each of the training processes of this machine; one core each is left to them."""
    return max(0, min(MAX_WORKERS, count_usable_cores() // processes - 1))


def load_batches(
    examples: ImageDataset,
    view: Transform | Transforms,
    plan: Iterable[Sequence[SampleKey]],
    workers: int = 0,
    pin: bool = False,
    reached: Callable[[SampleKey], None] | None = None,
    targets: Transforms | None = None,
) -> Iterator[ImageBatch]:
    """Load the batches of a plan (see `iterate_batch_keys`), in its order.

    Args:
        view: one transform of the image, or several by name.
        plan: its first batch is its largest.
        pin: page-locked memory, from which a copy to a GPU need not wait.
        reached: gets the first place of every batch before it is read, in the process that reads.
        targets: by name; from the encoded target of a sample, or from its image where the examples
            have no targets of their own. Default: the class index.

    Raises StorageError where remote images cannot be reached: they are not bad, and may be there
    tomorrow.
    """
    steps = iter(plan)
    first = next(steps, None)
    if first is None:
        return
    views = view if isinstance(view, Mapping) else {IMAGE: view}
    source = _DecodeSource(examples, views, targets or {}, reached)
    plan = itertools.chain([first], steps)
    if workers == 0:
        for places in plan:
            arrays = source.allocate(len(places))
            yield source.assemble(arrays, *source.fill(places, arrays), pin=False)
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
    plan = iterate_eval_keys(len(examples), batch_size)
    workers = min(workers, -(-len(examples) // batch_size))  # one without a batch is waste
    return load_batches(examples, EvalTransform(preprocess), plan, workers, pin)


def iterate_eval_keys(count: int, batch_size: int) -> Iterator[list[SampleKey]]:
    """Every sample once, in order."""
    for start in range(0, count, batch_size):
        yield [SampleKey(0, i) for i in range(start, min(start + batch_size, count))]


Arrays = list[np.ndarray]  # of the views, then of the targets: [B, ...] each


class _DecodeSource:
    """What the workers need of the examples, and no more: the keys stay in the main process."""

    def __init__(
        self,
        examples: ImageDataset,
        views: Transforms,
        targets: Transforms,
        reached: Callable[[SampleKey], None] | None,
    ) -> None:
        self.reader, self.rows, self.labels = examples.reader, examples.rows, examples.labels
        self.target_reader, self.reached = examples.target_reader, reached
        self.views, self.targets = views, targets
        self.transforms = [*views.values(), *targets.values()]

    def allocate(self, size: int) -> Arrays:
        return [np.empty((size, *t.shape), t.dtype) for t in self.transforms]

    @property
    def sample_bytes(self) -> list[int]:
        """Of one sample in each array."""
        return [int(np.prod(t.shape)) * t.dtype.itemsize for t in self.transforms]

    def fill(
        self, places: Sequence[SampleKey], arrays: Arrays
    ) -> tuple[np.ndarray, list[tuple[int, str]]]:
        """Decode into the arrays; gives int64 [good, 4] (label and place), and the bad."""
        if self.reached is not None:
            self.reached(places[0])
        good: list[tuple[int, ...]] = []
        bad = []
        for place in places:
            try:
                self.decode(place, [array[len(good)] for array in arrays])
            except (DataError, OSError) as error:
                bad.append((place.sample, str(error) or type(error).__name__))
            else:
                good.append((int(self.labels[place.sample]), *place))
        return np.array(good, np.int64).reshape(-1, 4), bad

    def decode(self, place: SampleKey, slots: Arrays) -> None:
        """One sample into its place in each array."""
        row = int(self.rows[place.sample])
        data = self.reader(row)
        for number, transform in enumerate(self.transforms):
            if number == len(self.views) and self.target_reader is not None:
                data = self.target_reader(row)
            slots[number][...] = transform(data, *place)

    def assemble(
        self, arrays: Arrays, table: np.ndarray, bad: list[tuple[int, str]], pin: bool
    ) -> ImageBatch:
        """The batch of the first rows of the arrays, as many as the table has."""
        tensors = [torch.from_numpy(array[: len(table)]) for array in arrays]
        if pin:
            tensors = [tensor.pin_memory() for tensor in tensors]
        labels, epochs, indices, repeats = torch.from_numpy(table).T.contiguous()  # each [B]
        images = [tensor.permute(0, 3, 1, 2) for tensor in tensors[: len(self.views)]]
        targets = dict(zip(self.targets, tensors[len(self.views) :], strict=True)) or labels
        views = dict(zip(self.views, images, strict=True))
        return ImageBatch(views, targets, indices, epochs, repeats, bad)


class _SharedSlots:
    """Memory of some batches that this process and its workers share."""

    def __init__(self, source: _DecodeSource, count: int, size: int, start: StartMethod) -> None:
        self.shapes = [(size, *t.shape) for t in source.transforms]
        self.dtypes = [t.dtype for t in source.transforms]
        sizes = [count * size * each for each in source.sample_bytes]
        try:
            self.buffers = [_share_memory(n, start) for n in sizes]
        except (OSError, MemoryError) as error:
            raise DataError(
                f"{count} batches of {size} images take {sum(sizes) / GIB:,.1f} GiB of memory, "
                "which this machine does not have: choose smaller images, or fewer in a batch"
            ) from error

    def __getitem__(self, slot: int) -> Arrays:
        """[B, ...] of each view and target."""
        return [
            np.frombuffer(memory, dtype).reshape(-1, *shape)[slot]
            for memory, dtype, shape in zip(self.buffers, self.dtypes, self.shapes, strict=True)
        ]


def _share_memory(size: int, start: StartMethod) -> Any:
    """Allocate bytes that a forked worker inherits, or that a spawned one opens."""
    if start == "fork":
        return mmap.mmap(-1, size)
    return multiprocessing.get_context("spawn").RawArray(ctypes.c_uint8, size)


class _SharedBatches(Dataset[Any]):
    """(slot, places) -> the slot is filled; what comes back is small."""

    def __init__(self, source: _DecodeSource, slots: _SharedSlots) -> None:
        self.source, self.slots = source, slots

    def __getitem__(self, task: tuple[int, Sequence[SampleKey]]) -> Any:
        slot, places = task
        try:
            return slot, *self.source.fill(places, self.slots[slot])
        except (StorageError, ConfigError) as error:  # raised here, it would come with a traceback
            return slot, None, error


def _from_workers(
    source: _DecodeSource, plan: Iterable[Sequence[SampleKey]], size: int, workers: int, pin: bool
) -> Iterator[ImageBatch]:
    each = size * sum(source.sample_bytes)  # bytes of a batch
    ahead = max(1, min(4, MAX_PREFETCH_BYTES // (each * workers)))  # batches waiting per worker
    count = ahead * workers + 1  # and the one that is being copied out
    start = choose_start_method()
    check_main_guard()
    slots = _SharedSlots(source, count, size, start)
    loader = DataLoader(
        _SharedBatches(source, slots),
        sampler=_SlotSampler(plan, count),
        batch_size=None,  # an item is a whole batch
        collate_fn=_identity,
        num_workers=workers,
        prefetch_factor=ahead,
        multiprocessing_context=start,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # else a draw from the global one, for unused seeds
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
                + (SPAWN_HINT if start == "spawn" else "")
            ) from error
        if table is None:
            del iterator  # ends the workers now, and not when the traceback is forgotten
            raise bad
        # Copied at once: the slot is filled again after the next batch is asked for.
        filled = [array[: len(table)] for array in slots[slot]]
        yield source.assemble(filled if pin else [a.copy() for a in filled], table, bad, pin)


SPAWN_HINT = '; a script of your own needs `if __name__ == "__main__":` around its calls'


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
    if not hasattr(signal, "sigwaitinfo"):
        return  # neither macOS nor Windows tells who has sent a signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_exit_on_parent_signal, daemon=True).start()


def _exit_on_parent_signal() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


SMALL_IMAGE_BYTES = 8192  # a thumbnail decodes in less time than a CPU takes to train on it


def choose_num_workers(examples: ImageDataset, cuda: bool = False, processes: int = 1) -> int:
    """Choose the workers of each training process: 0 for thumbnails on a CPU, else one per core.

    The training processes of this machine share its cores; each keeps one.
    """
    tiny = len(examples) > 0 and float(examples.sizes.mean()) < SMALL_IMAGE_BYTES
    return 0 if tiny and not cuda else default_num_workers(processes)


MIN_IMAGES_FOR_A_BAD_ONE = 5  # in fewer, one bad image is a quarter or more of all


def check_bad_image_share(
    bad: Collection[tuple[str, str]], images: int, what: str, max_bad: float
) -> None:
    """Raise DataError where more than a share `max_bad` of the images is bad: (path, reason).

    One bad image is taken from 5 images on: 1 % of 22 images is none at all.
    """
    free = 1 if max_bad > 0 and images >= MIN_IMAGES_FOR_A_BAD_ONE else 0
    if len(bad) > max(max_bad * images, free):
        path, reason = next(iter(bad))
        raise DataError(
            f"{len(bad)} of {images} {what} cannot be read, more than --max-bad {max_bad:.2%}; the "
            f"first: {path} ({reason}); `patchwords doctor` lists them all"
        )
