"""What a frozen model makes of images: the representation that its classifier would see.

Sizes: n images that could be read, B batch, C channels, H W image, R representation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch import Tensor, nn

from patchwords.data.dataset import (
    ALL,
    TEST,
    TRAIN,
    VALIDATION,
    DatasetSplits,
    ImageDataset,
    concatenate_datasets,
)
from patchwords.data.loader import load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import split_dataset
from patchwords.device import Device
from patchwords.errors import DataError, did_you_mean
from patchwords.evaluation.predictions import collect_outputs, eval_mode
from patchwords.models.build import Model
from patchwords.models.inference.packed import pack_for_inference

BATCH_SIZE = 64


@dataclass(frozen=True)
class Features:
    """Of the images that could be read, in the order of the examples."""

    indices: np.ndarray  # [n] int64, position in the examples
    labels: np.ndarray  # [n] int64, -1 = no label
    values: np.ndarray  # [n, R] float32, or float16 where they were kept so
    bad: list[tuple[int, str]]  # (position in the examples, reason)


def extract_example_features(
    model: nn.Module, examples: ImageDataset, preprocess: Preprocess, device: Device, workers: int
) -> Features:
    """The representation of every readable image, as the model is in evaluation.

    It draws no random number, and every module gets its training mode back.
    """
    with eval_mode(model), device.autocast():
        batches = load_eval_batches(examples, preprocess, BATCH_SIZE, workers)
        return Features(
            *collect_outputs(
                build_batch_encoder(model, preprocess, device), batches, device.torch_device
            )
        )


def build_batch_encoder(
    model: nn.Module, preprocess: Preprocess, device: Device
) -> Callable[[Tensor], Tensor]:
    """-> a function of uint8 [B, C, H, W] that gives float32 [B, R], what the classifier sees."""
    fast = pack_for_inference(cast(Model, model), device.bf16)

    def ask(images: Tensor) -> Tensor:
        return fast.represent(preprocess.normalise(images)).float()

    return ask


# What a probe learns from and what it is judged by: two parts of a data set, without leaks.
#
# Where the model is of a run on these very images, its own record decides: a probe that learned from
# them must not be judged on images that the model itself was trained on. Else the data's own
# division counts, and data that is not divided is cut, as training would cut it.


DEFAULT_TEST_SHARE = 0.2  # of data that is not divided: as training has it
# Shards are called alike in many data sets, and a row in some hundreds is as long as theirs.
MAX_COINCIDENT_SHARE = 0.02  # of the images


@dataclass(frozen=True)
class ProbeSplit:
    """Images to learn from and images to judge by, of the same classes."""

    train: ImageDataset
    test: ImageDataset
    origin: str  # who divided them, for a person


def split_for_probe(
    data: DatasetSplits,
    recorded: Mapping[tuple[str, int], str],
    seed: int = 0,
    share: float = DEFAULT_TEST_SHARE,
) -> ProbeSplit:
    """The two parts of the data.

    Args:
        recorded: (path, bytes) -> split of the run that the model is of (`read_recorded`); empty
            where there is none. Images that it has not divided, nor the data, are left aside.
        seed: of the cut, where nothing is divided; share: of the images that are cut off for test.

    Test is validation where there is no test. Raises DataError where a part is empty or has images
    without a label, there is one class only, or a class of test is not in train.
    """
    if is_run_data(data, recorded):
        parts, origin = split_as_recorded(data, recorded), "as the model's own run divided them"
    elif data.splits.keys() & {TEST, VALIDATION}:
        parts, origin = data.splits, "as the data are divided"
    else:
        test, validation = (share, 0.0) if ALL in data.splits else (0.0, share)
        cut = split_dataset(data, seed=seed, validation=validation, test=test, most_validation=None)
        off = TEST if TEST in cut.splits else VALIDATION  # as `split_dataset` calls what it cut off
        parts = {TRAIN: cut.splits[TRAIN], TEST: cut.splits[off]}
        origin = f"{share:.0%} of each class cut off for test, by seed {seed}"
    judged = next((name for name in (TEST, VALIDATION) if len(parts.get(name, ()))), None)
    if judged is None or not len(parts.get(TRAIN, ())):
        there = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
        raise DataError(
            f"{data.source}: a probe needs images to learn from and others to be judged by; "
            f"there are {there}"
        )
    if judged == VALIDATION:
        origin += "; there is no test split, so validation is the test"
    pair = ProbeSplit(parts[TRAIN], parts[judged], origin)
    require_learnable_split(pair, data.source)
    return pair


def is_run_data(data: DatasetSplits, recorded: Mapping[tuple[str, int], str]) -> bool:
    """Whether the run saw these images: more of them than could be met by coincidence."""
    met = [
        place in recorded
        for part in data.splits.values()
        for place in zip(part.keys, part.sizes.tolist(), strict=True)
    ]
    return sum(met) > MAX_COINCIDENT_SHARE * len(met)


def split_as_recorded(
    data: DatasetSplits, recorded: Mapping[tuple[str, int], str]
) -> dict[str, ImageDataset]:
    """The data's images by the run's record, and by the data's own division where it has none.

    What neither has divided stays in `all`, from which nothing is taken.
    """
    everything = concatenate_datasets(list(data.splits.values()))
    declared = [name for name, part in data.splits.items() for _ in range(len(part))]
    places = zip(everything.keys, everything.sizes.tolist(), strict=True)
    names = [recorded.get(place, own) for place, own in zip(places, declared, strict=True)]
    order = np.array(names)
    return {name: everything.select(np.flatnonzero(order == name)) for name in Counter(names)}


def require_learnable_split(pair: ProbeSplit, source: str) -> None:
    """One line for images without labels, and for classes that cannot be learned."""
    for name, part in (("train", pair.train), ("test", pair.test)):
        bare = np.flatnonzero(part.labels < 0)
        if len(bare):
            raise DataError(
                f"{source}: {len(bare):,} of {len(part):,} images of {name} have no label; the "
                f"first is {part.keys[int(bare[0])]}"
            )
    learned, judged = pair.train.count_per_class(), pair.test.count_per_class()
    names = pair.train.classes
    unknown = np.flatnonzero(judged * (learned == 0))
    if len(unknown):
        name = names[int(unknown[0])]
        near = did_you_mean(name, [names[i] for i in np.flatnonzero(learned)])
        raise DataError(f"{source}: class {name!r} is in test and not in train{near}")
    present = np.flatnonzero(learned)
    if len(present) < 2:
        raise DataError(
            f"{source}: train has one class only, {names[int(present[0])]!r}; a probe needs two"
        )


def limit_train_images(pair: ProbeSplit, positions: np.ndarray) -> ProbeSplit:
    """The pair with only these images of train."""
    return replace(pair, train=pair.train.select(positions))
