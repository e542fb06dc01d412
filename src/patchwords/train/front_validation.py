"""Validation where the frozen layers are computed once: the same images, seen in the same way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from patchwords.data.examples import VALIDATION
from patchwords.data.feature_file import BLOCK_ROWS
from patchwords.errors import DataError
from patchwords.model.family import Model
from patchwords.train.front_cache import ActivationCache


@torch.inference_mode()
def validate_from_cache(cache: ActivationCache, model: Model) -> dict[str, Any]:
    """Loss and accuracy of a model whose frozen layers are those of the cache.

    Raises DataError where none of the images can be read.
    """
    job, kept = cache.job, cache.kept(VALIDATION)
    labels = torch.from_numpy(job.data.splits[VALIDATION].labels)  # [n]
    readable = [index for index in range(len(labels)) if index not in kept.reasons]
    if not readable:
        raise DataError("none of the validation images can be read; patchwords doctor says why")
    front = replace(cache.front, model=model)
    model.eval()
    loss = right = 0.0
    for start in range(0, len(readable), BLOCK_ROWS):
        block = readable[start : start + BLOCK_ROWS]
        values = cache.loaded([kept.rows[index] for index in block])  # [B, ...]
        with job.device.autocast():
            logits = front.rest(values.to(job.device.torch_device)).cpu().double()  # [B, classes]
        loss += float(cross_entropy(logits, labels[block], reduction="sum"))
        right += float((logits.argmax(1) == labels[block]).sum())
    count = len(readable)
    return {"loss": loss / count, "accuracy": right / count, "images": count}
