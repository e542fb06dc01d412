"""From the training split to the step: batches in order, augmented, and the bad images named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from patchwords.data.augment import TrainView
from patchwords.data.bad import refuse_too_many_bad
from patchwords.data.batch_augment import augment_batch
from patchwords.data.examples import TRAIN, Examples
from patchwords.data.loader import Batch, train_batches
from patchwords.data.plan import train_plan
from patchwords.data.prefetch import prefetch
from patchwords.device import Device
from patchwords.distributed import concatenate, together, world
from patchwords.train.config import FinetuneConfig
from patchwords.train.front_cache import FrontCache
from patchwords.train.job import Job
from patchwords.train.task import balanced_weights


def feed(job: Job) -> Iterator[Batch]:
    """The batches from the step that the run has reached to the last one.

    Where what the frozen layers give is kept, that is in them in place of images.
    """
    train, config, plan, state = job.data.splits[TRAIN], job.config, job.plan, job.state
    weights = sample_weights(train) if config.recipe.balance == "sample" else None
    mixed, here = config.data_settings.shuffle_shards, world()
    order = train_plan(
        len(train),
        plan.batch_size,
        config.seed,
        state.step,
        plan.steps,
        weights=weights,
        rank=here.rank,
        world=here.size,
        shards=train.shards,
        group=mixed,
    )
    if job.front is not None:
        batches = FrontCache(job, job.front).batches(order)
    else:
        view = TrainView(job.start.preprocess, config.augment, config.seed)
        pin = job.device.type == "cuda"  # so that copies to the GPU need not wait
        ahead = prefetch(train, config.seed, mixed)
        batches = train_batches(train, view, order, job.workers, pin, ahead)
    return refuse_bad(batches, train, state.skipped, config.data_settings.max_bad)


def sample_weights(train: Examples) -> np.ndarray:
    """[n] how often each image is to be drawn, so that every class is drawn equally often."""
    import torch

    weights = balanced_weights(torch.from_numpy(train.count_per_class()))
    return weights.double().numpy()[train.labels]  # float64: they are summed over all images


def refuse_bad(
    batches: Iterable[Batch], train: Examples, skipped: dict[str, str], max_bad: float
) -> Iterator[Batch]:
    """Note the images that could not be read; raises DataError past the share that is allowed.

    All processes note those of all, so that they stop at the same one.
    """
    rest = iter(batches)
    while (batch := together(lambda: next(rest, None))) is not None:
        for index, reason in concatenate(batch.bad):
            skipped[train.keys[index]] = reason
        refuse_too_many_bad(skipped.items(), len(train), "training images", max_bad)
        yield batch


@dataclass(frozen=True)
class Prepare:
    """(batch, step) -> uint8 images [B, C, H, W] on the device, augmented, and their targets."""

    config: FinetuneConfig
    device: Device
    classes: int

    def __call__(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        place = self.device.torch_device
        return augment_batch(
            batch.images.to(place, non_blocking=True),
            batch.labels.to(place, non_blocking=True),
            batch.places,
            self.config.augment,
            self.config.seed,
            self.classes,
            step,
        )


@dataclass(frozen=True)
class PrepareKept:
    """(batch, step) -> activations [B, ...] on the device, and their targets."""

    device: Device

    def __call__(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        place = self.device.torch_device
        return (
            batch.images.to(place, non_blocking=True),
            batch.labels.to(place, non_blocking=True),
        )
