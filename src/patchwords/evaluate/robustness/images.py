"""Which images robustness is measured on: those that none of the models was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from patchwords.data.examples import TRAIN, DatasetSplits, ImageDataset
from patchwords.data.split import allocate_class_quotas
from patchwords.errors import ConfigError, DataError
from patchwords.evaluate.held_out import RecordedSplits, merge_run_splits, select_held_out
from patchwords.noise import numpy_generator


@dataclass(frozen=True)
class RobustnessImages:
    """The images to judge by, and those that a disturbance may be learned on."""

    split: str
    judged: ImageDataset
    training: ImageDataset | None
    notes: tuple[str, ...]  # for a person


def choose_robustness_images(
    data: DatasetSplits,
    recorded: Sequence[RecordedSplits],
    most: int | None = None,
    *,
    training: bool = False,
) -> RobustnessImages:
    """Held-out images of the data, as all the models' runs divided them.

    Args:
        recorded: of each model the splits.csv of its run, empty where there is none.
        most: keep a subset of so many, as many of each class as is its share; always the same.
        training: also give the images that all of it may learn from: the training images of the
            data or, where there are none, half of the held-out ones, which are then not judged by.
    """
    if most is not None and most < 1:
        raise ConfigError(f"--images {most}: it is a number of images, 1 or more")
    known = merge_run_splits(recorded)
    selection = select_held_out(data, known)
    judged, learned_on, notes = selection.examples, None, []
    if training:
        try:
            learned_on = select_held_out(data, known, TRAIN).examples
        except DataError:  # the data are held-out images only
            half = draw_stratified_subset(judged, len(judged) // 2)
            learned_on = judged.select(half)
            judged = judged.select(np.setdiff1d(np.arange(len(judged)), half))
            notes.append(
                f"there are no training images: of the held-out ones {len(learned_on):,} are "
                f"learned on, and {len(judged):,} judged by"
            )
    if most is not None and most < len(judged):
        part = judged.select(draw_stratified_subset(judged, most))
        notes.append(f"{len(part):,} of {len(judged):,} images, each class by its share")
        judged = part
    return RobustnessImages(selection.split, judged, learned_on, tuple(notes))


def draw_stratified_subset(examples: ImageDataset, count: int) -> np.ndarray:
    """int64 [count], positions, rising: of each class its share, the same at every call.

    Images without a label count as a class.
    """
    classes = examples.labels + 1
    drawn = allocate_class_quotas(np.bincount(classes), count / max(len(examples), 1), keep=0)
    places = [np.empty(0, dtype=np.int64)]
    for label in np.flatnonzero(drawn).tolist():
        order = numpy_generator(0, "robustness", label).permutation(
            np.flatnonzero(classes == label)
        )
        places.append(order[: drawn[label]])
    return np.sort(np.concatenate(places))
