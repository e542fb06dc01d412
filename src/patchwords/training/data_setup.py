"""The data of a run: the splits, and the images of the live few-shot metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from patchwords.data.dataset import (
    ALL,
    TEST,
    TRAIN,
    VALIDATION,
    DatasetSplits,
    ImageDataset,
    pluralize,
)
from patchwords.data.doctor.contents import add_fingerprints, count_copies
from patchwords.data.open import open_data
from patchwords.data.shards.stream import check_shard_cache_size
from patchwords.data.splits import (
    divide_as_recorded,
    draw_shots,
    exclude_listed_images,
    join_validation,
    read_splits,
    split_dataset,
    subsample_training_images,
)
from patchwords.distributed import get_world
from patchwords.errors import ConfigError, DataError
from patchwords.rng import numpy_generator
from patchwords.training.config import DataSettings, FinetuneConfig
from patchwords.training.logs.run_folder import RunFolder

MAX_FEWSHOT_VALIDATION = 2_000  # images: then the standard error of the accuracy is 1.1 % at most


def load_dataset_splits(config: FinetuneConfig, need_labels: bool = True) -> DatasetSplits:
    """Open the data source and hold images out."""
    settings = config.data_settings
    data = open_data(
        config.data,
        image_column=settings.image_column,
        label_column=settings.label_column,
        classes=settings.classes,
        need_labels=need_labels,
        unseen_classes=settings.unseen_classes,
        cache_size=settings.cache_size,
    )
    if settings.exclude is not None:
        data = exclude_listed_images(data, settings.exclude)
    for examples in data.splits.values():
        check_shard_cache_size(examples, settings.shuffle_shards)
    if not {ALL, TRAIN} & data.splits.keys():
        raise DataError(f"{data.source}: has images for {', '.join(data.splits)}, none for train")
    if settings.join_validation:
        data = join_validation(data)
    seed = config.seed if settings.split_seed is None else settings.split_seed
    data = _divide_as_before(config, data) or _divide_by_content(data, settings, seed)
    if not any(len(part) for name, part in data.splits.items() if name != TRAIN):
        raise DataError(
            f"{data.source}: no image is held out to measure the model on; raise --test or "
            "--validation, or add images that are not copies of others"
        )
    if settings.train_images is not None:
        every_class = need_labels and not settings.unseen_classes
        data = subsample_training_images(data, settings.train_images, seed, every_class)
    return data


def _divide_as_before(config: FinetuneConfig, data: DatasetSplits) -> DatasetSplits | None:
    """Divide data as the resumed run has; None where it does not say, or the data have changed."""
    if not config.resume or config.output is None:
        return None
    folder = RunFolder(Path(config.output))
    if not folder.splits.is_file():
        return None
    divided = divide_as_recorded(data, read_splits(folder.splits))
    try:
        notes = tuple(json.loads(folder.data.read_text(encoding="utf-8"))["notes"])
    except (OSError, ValueError, KeyError, TypeError):
        return divided
    return divided and replace(divided, notes=notes)


def _divide_by_content(data: DatasetSplits, settings: DataSettings, seed: int) -> DatasetSplits:
    """Divide data with copies on one side, and say where the data themselves have parted them."""
    data = split_dataset(
        add_fingerprints(data),
        seed=seed,
        validation=settings.validation,
        test=settings.test,
        most_validation=settings.most_validation,
    )
    notes = [
        f"{pluralize(copies, f'{name} image is a copy', f'{name} images are copies')} of training "
        f"images, as the data divide them: the score flatters; patchwords dedup lists them"
        for name in (VALIDATION, TEST)
        if name in data.splits and (copies := count_copies(data.splits[name], data.splits[TRAIN]))
    ]
    return replace(data, notes=(*data.notes, *notes))


def limit_batch_size(
    config: FinetuneConfig, data: DatasetSplits
) -> tuple[FinetuneConfig, DatasetSplits]:
    """Limit --batch-size to the training images, with a note: it would decode them repeatedly."""
    size, images, world = config.recipe.batch_size, len(data.splits[TRAIN]), get_world().size
    most = max(images // world, 1) * world
    if size is None or size <= most or config.resume:
        return config, data
    note = f"--batch-size {size:,} is more than there are training images: batches of {most:,}"
    recipe = replace(config.recipe, batch_size=most)
    return replace(config, recipe=recipe), replace(data, notes=(*data.notes, note))


def select_fewshot_images(
    config: FinetuneConfig, data: DatasetSplits
) -> tuple[ImageDataset, ImageDataset] | None:
    """Draw the images of the live few-shot metric: -> (shots of train, up to 2,000 of validation).

    The same whenever the run goes on; None without --fewshot-every.

    Raises ConfigError or DataError in one line where the data have no labels, a class has too few
    images, or nothing is held out.
    """
    machine = config.machine
    if machine.fewshot_every is None:
        return None
    train, held_out = data.splits[TRAIN], data.splits.get(VALIDATION)
    if held_out is None or not len(held_out):
        raise ConfigError(
            "--fewshot-every needs validation images to judge by, and there are none; raise "
            "--validation"
        )
    try:
        drawn = draw_shots(train.labels, machine.fewshot_shots, config.seed, train.classes)
    except DataError as error:
        raise DataError(f"--fewshot-every: {error}") from error
    generator = numpy_generator(config.seed, "fewshot", "held out")
    judges = np.sort(generator.permutation(len(held_out))[:MAX_FEWSHOT_VALIDATION])
    return train.select(drawn), held_out.select(judges)
