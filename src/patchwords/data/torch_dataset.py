"""Any of our data sources as a torch Dataset, for a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from patchwords.data.augment import TrainTransform
from patchwords.data.dataset import (
    ALL,
    SPLIT_ALIASES,
    TEST,
    TRAIN,
    VALIDATION,
    ImageDataset,
    concatenate_datasets,
)
from patchwords.data.decode import decode_image
from patchwords.data.doctor.contents import add_fingerprints
from patchwords.data.loader import EvalTransform
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import split_dataset
from patchwords.errors import ConfigError, DataError, did_you_mean

ImageTransform = TrainTransform | EvalTransform | Preprocess | Callable[[Any], Any]


class TorchImageDataset(Dataset[tuple[Any, int]]):
    """Images decoded when they are asked for; an item is (image, target), -1 without a label.

    A new epoch of a `TrainTransform` begins with `set_epoch`, before the DataLoader is iterated.
    """

    def __init__(self, examples: ImageDataset, transform: ImageTransform | None = None) -> None:
        self.examples, self.transform = examples, transform
        self.epoch = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, by target."""
        return self.examples.classes

    @property
    def targets(self) -> np.ndarray:
        """int64 [n]"""
        return self.examples.labels

    @property
    def paths(self) -> list[str]:
        """What names each image."""
        return list(self.examples.keys)

    def set_epoch(self, epoch: int) -> None:
        """Let a `TrainTransform` draw the crops of this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """(image, target); raises DataError, which names the image, where it cannot be read."""
        place = range(len(self))[index]
        try:
            image = self._transformed(self.examples.read(place), place)
        except (DataError, OSError) as error:
            raise DataError(f"{self.examples.keys[place]}: {error}") from error
        return image, int(self.examples.labels[place])

    def _transformed(self, data: bytes, place: int) -> Any:
        transform = self.transform
        if isinstance(transform, TrainTransform | EvalTransform):
            pixels = transform(data, self.epoch, place, 0)  # [H, W, C]
            return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()  # uint8 [C, H, W]
        if isinstance(transform, Preprocess):
            return transform(data)[0]  # float32 [C, H, W]
        image = decode_image(data)
        return image if transform is None else transform(image)


def load_dataset(
    source: str | Path,
    split: str | None = None,
    transform: ImageTransform | None = None,
    *,
    seed: int = 0,
    image_column: str | None = None,
    label_column: str | None = None,
) -> TorchImageDataset:
    """Open a data source as a torch Dataset.

    Args:
        source: a folder, CSV, parquet, tar shards, hf:NAME or digits.
        split: train, validation or test, divided as `finetune` divides them with this seed; all
            images by default.
        transform: a `Preprocess` gives float32 [C, H, W] as the model takes it; a `TrainTransform`
            or an `EvalTransform` gives uint8 [C, H, W]; any other callable is given the PIL image,
            which is the item by default.
        image_column: column of a CSV or parquet that has the images; label_column: the labels.
    """
    data = open_data(
        str(source), image_column=image_column, label_column=label_column, need_labels=False
    )
    if split is None:
        return TorchImageDataset(concatenate_datasets(list(data.splits.values())), transform)
    if split not in SPLIT_ALIASES:
        choices = (TRAIN, VALIDATION, TEST)
        raise ConfigError(f"unknown split {split!r}{did_you_mean(split, choices)}")
    if {ALL, TRAIN} & data.splits.keys():
        data = split_dataset(add_fingerprints(data), seed=seed)
    name = SPLIT_ALIASES[split]
    if name not in data.splits:
        raise DataError(f"{source}: no images of {name}; there are {', '.join(data.splits)}")
    return TorchImageDataset(data.splits[name], transform)
