"""What a frozen model makes of images: the representation that its classifier would see.

Sizes: n images that could be read, B batch, C channels, H W image, R representation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import nn

from patchwords.data.examples import Examples
from patchwords.data.loader import eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.evaluate.classify import evaluating
from patchwords.model.family import Model

BATCH = 64


@dataclass(frozen=True)
class Features:
    """Of the images that could be read, in the order of the examples."""

    indices: np.ndarray  # [n] int64, position in the examples
    labels: np.ndarray  # [n] int64, -1 = no label
    values: np.ndarray  # [n, R] float32
    bad: list[tuple[int, str]]  # (position in the examples, reason)


def represent(
    model: nn.Module, examples: Examples, preprocess: Preprocess, device: Device, workers: int
) -> Features:
    """The representation of every readable image, as the model is in evaluation.

    It draws no random number, and every module gets its training mode back.
    """
    model = cast(Model, model)
    indices, labels, values = [], [], []
    bad: list[tuple[int, str]] = []
    with evaluating(model), torch.inference_mode(), device.autocast():
        for batch in eval_batches(examples, preprocess, BATCH, workers):
            bad += batch.bad
            if not len(batch.indices):  # nothing in it could be read
                continue
            images = batch.images.to(device.torch_device, non_blocking=True)  # [B, C, H, W] uint8
            features = model.forward_features(preprocess.normalise(images))
            values.append(model.forward_head(features, pre_logits=True).float().cpu().numpy())
            indices.append(batch.indices.numpy())
            labels.append(batch.labels.numpy())
    nothing = np.empty(0, dtype=np.int64)
    return Features(
        indices=np.concatenate([nothing, *indices]),
        labels=np.concatenate([nothing, *labels]),
        values=np.concatenate(values or [np.empty((0, 0), dtype=np.float32)]),
        bad=bad,
    )
