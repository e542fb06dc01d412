"""The images of the live few-shot metric: drawn once, the same whenever the run goes on."""

from __future__ import annotations

import numpy as np

from patchwords.data.examples import TRAIN, VALIDATION, DatasetSplits, ImageDataset
from patchwords.data.shots import draw_shots
from patchwords.errors import ConfigError, DataError
from patchwords.noise import numpy_generator
from patchwords.train.config import FinetuneConfig

MAX_FEWSHOT_VALIDATION = 2_000  # images: then the standard error of the accuracy is 1.1 % at most


def select_fewshot_images(
    config: FinetuneConfig, data: DatasetSplits
) -> tuple[ImageDataset, ImageDataset] | None:
    """(a few images of each class of train, up to 2,000 of validation); None where not asked for.

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
