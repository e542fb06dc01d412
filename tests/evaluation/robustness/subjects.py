"""Models and images that are made on the spot, for the tests of what is done to images."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from patchwords.data.dataset import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness.perturbation import PerturbationBatch
from patchwords.models.build import ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import BIT_TRUNK, ResNetConfig
from patchwords.weights.pretrained import Pretrained

CLASSES = ("ant", "bee", "cat")
SIZE = (24, 16)
VIT = ViTConfig(4, 14, 2, 2, 22, image_size=SIZE, num_classes=len(CLASSES))
RESNET = ResNetConfig(
    trunk=replace(BIT_TRUNK, units=(1,)), image_size=SIZE, num_classes=len(CLASSES)
)


def still(config: ModelConfig, name: str = "model") -> LoadedModel:
    """A model with the values of its layers' makers, where nobody asks it anything."""
    assert config.channels in (1, 3)
    preprocess = Preprocess(config.image_size, crop_fraction=1.0, channels=config.channels)  # type: ignore[arg-type]
    device = Device(torch.device("cpu"), bf16=False)
    return LoadedModel(name, Pretrained(build_model(config).eval(), preprocess, CLASSES), device, 0)


def lively(config: ModelConfig, name: str = "model") -> LoadedModel:
    """A model whose every parameter is drawn, and whose answers differ from image to image."""
    own = torch.Generator().manual_seed(5)
    subject = still(config, name)
    model = subject.model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=own) / 3)
        coarse = torch.rand(64, config.channels, 6, 4, generator=own) * 2 - 1
        logits = model(interpolate(coarse, config.image_size))
        model.head.linear.bias -= logits.mean(0)  # else one class is always the likeliest
    return subject


def pixels(count: int, size: tuple[int, int] = SIZE, channels: int = 3) -> Tensor:
    """uint8 [B, C, H, W], 1 to 255: nothing is black by itself."""
    own = torch.Generator().manual_seed(7)
    return torch.randint(1, 256, (count, channels, *size), generator=own, dtype=torch.uint8)


def batch_of(
    subject: LoadedModel, count: int = 5, first: int = 0, size: tuple[int, int] | None = None
) -> PerturbationBatch:
    """The images `first` to `first + count` of one series, wherever a batch begins."""
    given = size or subject.preprocess.image_size
    images = pixels(first + count, given, subject.preprocess.channels)[first:]
    labels = torch.zeros(count, dtype=torch.int64)
    return PerturbationBatch(images, labels, list(range(first, first + count)), subject)


class Pngs:
    """Reads image `row` of a series of coarse pictures; some rows cannot be read."""

    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.broken = broken

    def __call__(self, row: int) -> bytes:
        if row in self.broken:
            return b"not an image"
        own = np.random.default_rng(row)
        coarse = own.integers(1, 256, (6, 4, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((16, 24)).save(file, "PNG")
        return file.getvalue()


def examples_of(
    count: int, classes: tuple[str, ...] = CLASSES, broken: tuple[int, ...] = ()
) -> ImageDataset:
    rows = np.arange(count)
    labels = rows % len(classes)
    return ImageDataset(
        classes, labels, [f"{row}.png" for row in rows], rows + 1, Pngs(broken), rows
    )
