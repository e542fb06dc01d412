"""Cached activations of the frozen layers: one on disk for each view of each image.

    RUN/frozen/
      3f2a.../       of these weights, images and settings
        view-0/      of the training images: one array, see data/feature_store.py
        validation/  of the validation images, which are seen in one way

They are computed before the first step, in blocks of 64 images in the order of the data, so that
a value does not depend on the later batches; a pass that was killed goes on where it was. The
folder is deleted when the run has ended. If it is deleted before, the same is computed again.

Sizes: n images, B batch, R numbers of one image.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from patchwords.data.augment import TrainTransform
from patchwords.data.batch_augment import augment_images
from patchwords.data.dataset import TRAIN, VALIDATION, ImageDataset
from patchwords.data.feature_store import BLOCK_ROWS, FeatureStore
from patchwords.data.loader import (
    IMAGE,
    EvalTransform,
    ImageBatch,
    Transform,
    check_bad_image_share,
    load_batches,
)
from patchwords.data.sampler import SampleKey
from patchwords.data.splits import fingerprint_dataset
from patchwords.errors import Interrupted
from patchwords.models.build import config_to_dict
from patchwords.training.inputs.frozen import FrozenBackbone, count_augmented_views
from patchwords.training.logs.display import Display
from patchwords.training.training_run import TrainingRun
from patchwords.version import __version__
from patchwords.weights.pretrained import digest_tensors

STORAGE_DTYPES = {
    torch.bfloat16: torch.int16
}  # NumPy has no bfloat16: kept as numbers of as many bits

StopCheck = Callable[[], int | None]  # -> exit code of the signal that came


@dataclass(frozen=True)
class CachePart:
    """Images that are seen in one way: a view of the training images, or the validation images."""

    name: str  # of its folder
    examples: ImageDataset
    view: Transform
    epoch: int | None  # of the training images: that in which they are seen so


@dataclass(frozen=True)
class ActivationCache:
    """Activations of the training and validation images of a run."""

    job: TrainingRun
    front: FrozenBackbone

    @property
    def train(self) -> ImageDataset:
        return self.job.data.splits[TRAIN]

    @property
    def views(self) -> int:
        return count_augmented_views(self.job.config, self.job.plan)

    @cached_property
    def folder(self) -> Path:
        """Named by a digest of everything that the activations depend on and a run may change."""
        job, shape = self.job, config_to_dict(self.front.model.config)
        weights = {k: v for k, v in job.state.model.named_parameters() if not v.requires_grad}
        look = job.start.preprocess.to_dict(), asdict(job.config.augment), job.config.seed
        how = job.device.describe(), self.front.first, BLOCK_ROWS, __version__
        about = repr((digest_tensors(weights), shape, fingerprint_dataset(job.data), look, how))
        name = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        return job.folder.frozen / name

    @cached_property
    def like(self) -> Tensor:
        """Activations of one image, [1, ...], for their shape and type."""
        return self.front.of_one(self.job.start.preprocess, self.job.device).cpu()

    @cached_property
    def parts(self) -> list[CachePart]:
        job = self.job
        look = TrainTransform(job.start.preprocess, job.config.augment, job.config.seed)
        parts = [CachePart(f"view-{view}", self.train, look, view) for view in range(self.views)]
        held_out = job.data.splits.get(VALIDATION)
        if held_out is not None and len(held_out):
            parts.append(CachePart(VALIDATION, held_out, EvalTransform(job.start.preprocess), None))
        return parts

    def file(self, name: str) -> FeatureStore:
        return FeatureStore(self.folder / name)

    def fill(self, stop: StopCheck, display: Display) -> None:
        """Compute what is missing; its time counts as training.

        Raises Interrupted on a signal, DataError where too many images cannot be read, ConfigError
        where the disk is full.
        """
        clock = time.perf_counter()
        for other in set(self.job.folder.frozen.glob("*")) - {self.folder}:
            shutil.rmtree(other, ignore_errors=True)
        try:
            for part in self.parts:
                if not self.file(part.name).is_whole:
                    self.fill_part(part, stop, display)
        finally:
            self.job.state.seconds += time.perf_counter() - clock

    def fill_part(self, part: CachePart, stop: StopCheck, display: Display) -> None:
        """Compute the missing blocks of one part."""
        job, file, count = self.job, self.file(part.name), len(part.examples)
        file.begin(count, self.like.numel(), to_storage_dtype(self.like).numpy().dtype)
        blocks = file.blocks_left().tolist()
        spans = [range(b * BLOCK_ROWS, min((b + 1) * BLOCK_ROWS, count)) for b in blocks]
        plan = ([SampleKey(part.epoch or 0, sample) for sample in span] for span in spans)
        cuda = job.device.type == "cuda"
        batches = load_batches(part.examples, part.view, plan, job.workers, cuda)
        names = [other.name for other in self.parts]
        sizes = [len(other.examples) for other in self.parts]
        before, whole = sum(sizes[: names.index(part.name)]), sum(sizes)
        called = "validation images" if part.epoch is None else "training images"
        bad: dict[str, str] = {}
        with file.filling() as filling:
            for block, span, batch in zip(blocks, spans, batches, strict=True):
                bad.update((part.examples.keys[index], reason) for index, reason in batch.bad)
                limit = job.config.data_settings.max_bad
                check_bad_image_share(bad.items(), count, called, limit)
                filling.write(block, self.rows(part, span, batch), batch.bad)
                done = before + span.stop
                display.busy(f"frozen layers: {done:,} of {whole:,} images computed")
                if (code := stop()) is not None:
                    raise Interrupted("stopped while the frozen layers were computed", code)
        file.finish({"part": part.name})

    def rows(self, part: CachePart, span: range, batch: ImageBatch) -> np.ndarray | None:
        """Return rows [64 or fewer, R], zeros for a bad image; None if all are bad."""
        if not len(batch.indices):
            return None
        values = to_storage_dtype(self.compute(part, batch)).flatten(1).numpy()  # [B, R]
        rows = np.zeros((len(span), values.shape[1]), values.dtype)
        rows[batch.indices.numpy() - span.start] = values
        return rows

    @torch.no_grad()
    def compute(self, part: CachePart, batch: ImageBatch) -> Tensor:
        """Compute activations [B, ...] as a training step or an evaluation would."""
        job, trains = self.job, part.epoch is not None
        images = batch.images.to(job.device.torch_device, non_blocking=True)
        job.state.model.train(trains)
        if trains:
            images = augment_images(images, batch.places, job.config.augment, job.config.seed)
        with job.device.autocast():
            return self.front.activations(job.start.preprocess.normalise(images))

    def batches(self, plan: Iterable[Sequence[SampleKey]]) -> Iterator[ImageBatch]:
        """Yield the batches of a plan, with activations [B, ...] in place of images."""
        labels, drawn_at = torch.from_numpy(self.train.labels), self.job.config.augment.drawn_at
        views = [self.kept(f"view-{view}") for view in range(self.views)]
        pin = self.job.device.type == "cuda"
        for places in plan:
            rows, good, bad = [], [], []
            for place in places:
                view = views[drawn_at(place).epoch % len(views)]
                if (reason := view.reasons.get(place.sample)) is not None:
                    bad.append((place.sample, reason))
                else:
                    good.append(place)
                    rows.append(view.rows[place.sample])
            values = self.loaded(rows)
            table = torch.tensor(good, dtype=torch.int64).reshape(-1, 3)
            epochs, samples, repeats = table.T.contiguous()  # each [B]
            values = values.pin_memory() if pin else values
            yield ImageBatch({IMAGE: values}, labels[samples], samples, epochs, repeats, bad)

    def validation_batches(self) -> Iterator[ImageBatch]:
        """Yield batches of the validation images that can be read, in order."""
        kept = self.kept(VALIDATION)
        labels = torch.from_numpy(self.job.data.splits[VALIDATION].labels)  # [n]
        readable = torch.tensor([i for i in range(len(labels)) if i not in kept.reasons])
        for block in readable.split(BLOCK_ROWS):
            values = self.loaded([kept.rows[index] for index in block.tolist()])  # [B, ...]
            yield replace(ImageBatch.of(values, labels[block]), indices=block)

    def kept(self, name: str) -> CachedView:
        """Open a complete part."""
        return CachedView(*self.file(name).read())

    def loaded(self, rows: Sequence[np.ndarray]) -> Tensor:
        """Restore activations [B, ...] from B rows [R] of the disk."""
        if not rows:
            return self.like[:0]
        values = torch.from_numpy(np.stack(rows)).view(self.like.dtype)
        return values.unflatten(1, self.like.shape[1:])


class CachedView:
    """One view of every image, and the images that could not be read."""

    def __init__(self, rows: np.ndarray, bad: Sequence[tuple[int, str]]) -> None:
        self.rows = rows.view(np.ndarray)  # [n, R] on the disk; a memmap's own slices are slow
        self.reasons = dict(bad)


def to_storage_dtype(values: Tensor) -> Tensor:
    """View a tensor on the CPU in a type that NumPy has, with the same bits."""
    return values.cpu().contiguous().view(STORAGE_DTYPES.get(values.dtype, values.dtype))
