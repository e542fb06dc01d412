"""Training batches: in order from the step reached, augmented, with the bad images noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from patchwords.data.dataset import TRAIN, ImageDataset
from patchwords.data.loader import ImageBatch, check_bad_image_share, load_batches
from patchwords.data.sampler import iterate_batch_keys
from patchwords.data.shards.stream import build_shard_prefetcher
from patchwords.distributed import all_gather_lists, get_world, run_on_all_processes
from patchwords.training.inputs.frozen_cache import ActivationCache
from patchwords.training.objectives import augment_views
from patchwords.training.training_run import TrainingRun


def iterate_training_batches(run: TrainingRun) -> Iterator[ImageBatch]:
    """Iterate over the batches from the step that the run has reached to the last one.

    With a cache of frozen layers they hold activations in place of images.
    """
    train, config, plan, state = run.data.splits[TRAIN], run.config, run.plan, run.state
    weights = run.objective.sample_weights(train)
    mixed, here = config.data_settings.shuffle_shards, get_world()
    order = iterate_batch_keys(
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
    if run.front is not None:
        batches = ActivationCache(run, run.front).batches(order)
    else:
        views = run.objective.views()
        pin = run.device.type == "cuda"  # so that copies to the GPU need not wait
        ahead = build_shard_prefetcher(train, config.seed, mixed)
        batches = load_batches(
            train, views.train, order, run.workers, pin, ahead, views.train_targets
        )
    return record_bad_images(batches, train, state.skipped, config.data_settings.max_bad)


def record_bad_images(
    batches: Iterable[ImageBatch], train: ImageDataset, skipped: dict[str, str], max_bad: float
) -> Iterator[ImageBatch]:
    """Note the images that could not be read; raises DataError above the allowed share.

    Every process notes those of all, so that all stop at the same one.
    """
    rest = iter(batches)
    while (batch := run_on_all_processes(lambda: next(rest, None))) is not None:
        for index, reason in all_gather_lists(batch.bad):
            skipped[train.keys[index]] = reason
        check_bad_image_share(skipped.items(), len(train), "training images", max_bad)
        yield batch


def build_batch_preparer(run: TrainingRun) -> Callable[[ImageBatch, int], ImageBatch]:
    """Build the function that puts a decoded batch on the device and augments it."""
    views = {} if run.front is not None else run.objective.views().train  # else augmented already

    def prepare(batch: ImageBatch, step: int) -> ImageBatch:
        return run.objective.prepare(augment_views(batch, views, run.device), step)

    return prepare
