"""A model that takes no time, digits to ask it about, and readers and models that fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from patchwords.data.dataset import ALL, DatasetSplits, ImageDataset
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.evaluation.probes.cache import FeatureCache, ProbeFeatures
from patchwords.evaluation.probes.features import Features, ProbeSplit
from patchwords.models.build import Model, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights

PREPROCESS = Preprocess(image_size=(8, 8), crop_fraction=1.0)
CPU = Device(torch.device("cpu"), bf16=False)
BF16 = Device(torch.device("cpu"), bf16=True)
MEBIBYTE = 2**20


def tiny(seed: int = 1) -> Model:
    """Features of 14 numbers. With relative positions it is asked itself, and no faster copy."""
    shape = ViTConfig(
        patch_size=4,
        width=14,
        depth=1,
        heads=2,
        mlp_width=22,
        num_classes=10,
        image_size=(8, 8),
        position="relative",
    )
    model = build_model(shape)
    init_weights(model, seed=seed)
    return model.eval()


@functools.cache
def digits() -> DatasetSplits:
    return open_data("digits")


def images(count: int, first: int = 0) -> ImageDataset:
    return digits().splits[ALL].select(range(first, first + count))


def cache(folder: Path, bound: int = MEBIBYTE) -> FeatureCache:
    return FeatureCache(folder, bound)


class Torn:
    """A reader of which some rows are no images."""

    def __init__(self, reader: Callable[[int], bytes], rows: Iterable[int]) -> None:
        self.reader, self.rows = reader, set(rows)

    def __call__(self, row: int) -> bytes:
        return b"torn" if row in self.rows else self.reader(row)


def torn(examples: ImageDataset, places: Iterable[int]) -> ImageDataset:
    rows = [int(examples.rows[place]) for place in places]
    return replace(examples, reader=Torn(examples.reader, rows))


class Counted(torch.nn.Module):
    """The model, and how many images it was asked for; after `most` of them it does something."""

    def __init__(self, most: int = 10**9, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.vit, self.images, self.most, self.then = tiny(), 0, most, then
        self.config = self.vit.config

    def represent(self, images: Tensor) -> Tensor:
        if self.images + len(images) > self.most:
            self.then()
        self.images += len(images)
        return self.vit.represent(images)


def blobs(count: int, width: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes around centres of their own; features differ in scale."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.resize(np.arange(classes), count))
    centres = np.random.default_rng(99).normal(size=(classes, width))
    scale = np.exp(np.linspace(-1, 1, width))
    x = (centres[labels] + 1.5 * random.normal(size=(count, width))) * scale + 3.0
    return x.astype(np.float32), labels


def frozen_of(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], classes: int
) -> ProbeFeatures:
    """As if a model had made these features of images."""
    names = tuple(f"class {i}" for i in range(classes))

    def part(values: np.ndarray, labels: np.ndarray) -> tuple[ImageDataset, Features]:
        n = len(labels)
        keys, none = [f"{i}.png" for i in range(n)], np.zeros(n, dtype=np.int64)
        examples = ImageDataset(names, labels, keys, none, lambda row: b"", np.arange(n))
        return examples, Features(np.arange(n), labels, values, [])

    (learned, train_features), (judged, test_features) = part(*train), part(*test)
    return ProbeFeatures(ProbeSplit(learned, judged, "made up"), train_features, test_features, ())
