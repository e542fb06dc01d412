"""What a frozen model makes of images: the representation that its classifier would see.

Sizes: n images that could be read, B batch, C channels, H W image, R representation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from torch import Tensor, nn

from patchwords.data.examples import ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.evaluate.classify import collect_outputs, eval_mode
from patchwords.model.family import Model
from patchwords.model.fast import pack_for_inference

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
