"""Held-out images by the objective of pre-training, for the curves and for the report.

The corruption of a held-out image is a function of (seed, image): the same at every evaluation,
so that two of them differ by the weights alone.
Sizes: B batch, C channels, H W image, R corrupted patches of an image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from patchwords.data.examples import ImageDataset
from patchwords.data.loader import ImageBatch, load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import all_reduce_sum, run_on_all_processes
from patchwords.errors import DataError
from patchwords.evaluate.classify import eval_mode
from patchwords.evaluate.held_out import EVAL_BATCH_SIZE, evaluate_classifier, get_process_indices
from patchwords.model.masked import MaskedViT, PatchCorruption
from patchwords.train.finetune import EvaluateFn
from patchwords.train.masked import MaskedPatchLoss, build_mask_sampler, build_masked_patch_loss
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.task import sigmoid_loss


def choose_evaluator(config: PretrainConfig) -> EvaluateFn:
    """What measures a run of this config while it trains."""
    if config.learn.objective == "masked":
        return partial(evaluate_masked_prediction, config)
    return evaluate_sigmoid_classifier if config.learn.loss == "sigmoid" else evaluate_classifier


def evaluate_sigmoid_classifier(
    model: nn.Module, examples: ImageDataset, preprocess: Preprocess, device: Device, workers: int
) -> dict[str, Any]:
    """Loss and accuracy as `held_out.measure` has them, but the loss that sigmoids train on."""
    share = examples.select(get_process_indices(examples))
    return reduce_metric_sums(
        run_on_all_processes(lambda: sum_sigmoid_metrics(model, share, preprocess, device, workers))
    )


def sum_sigmoid_metrics(
    model: nn.Module, examples: ImageDataset, preprocess: Preprocess, device: Device, workers: int
) -> tuple[float, float, int]:
    """(loss, right, images)"""
    loss, right, images = 0.0, 0, 0
    with eval_mode(model), torch.inference_mode(), device.autocast():
        for batch in skip_unreadable_batches(
            load_eval_batches(examples, preprocess, EVAL_BATCH_SIZE, workers)
        ):
            labels = batch.labels.to(device.torch_device)
            logits = model(preprocess.normalise(batch.images.to(device.torch_device)))
            loss += float(sigmoid_loss(logits, labels).sum())
            right += int((logits.argmax(-1) == labels).sum())
            images += len(labels)
    return loss, right, images


def evaluate_masked_prediction(
    config: PretrainConfig,
    learner: nn.Module,
    examples: ImageDataset,
    preprocess: Preprocess,
    device: Device,
    workers: int,
) -> dict[str, Any]:
    """Loss and accuracy of the colours of corrupted patches."""
    places = get_process_indices(examples)
    share = examples.select(places)
    seen = run_on_all_processes(
        lambda: list(
            iterate_masked_metrics(config, learner, share, preprocess, device, workers, places)
        )
    )
    return reduce_metric_sums(
        (
            sum(answer.loss for answer in seen),
            sum(answer.right for answer in seen),
            sum(answer.images for answer in seen),
        )
    )


def reduce_metric_sums(sums: tuple[float, float, int]) -> dict[str, Any]:
    """(loss, right, images) of this process's share -> the row of all shares."""
    loss, right, images = all_reduce_sum(torch.tensor(sums, dtype=torch.float64)).tolist()
    return average_metric_sums(loss, right, int(images))


def average_metric_sums(loss: float, right: float, images: int) -> dict[str, Any]:
    """Sums over images -> a row of metrics.jsonl."""
    if not images:
        raise DataError("none of the validation images can be read; patchwords doctor says why")
    return {"loss": loss / images, "accuracy": right / images, "images": images}


@dataclass(frozen=True)
class MaskedBatchMetrics:
    """Of one batch."""

    loss: float  # sum over the images
    right: float
    images: int
    colours: Counter[int]  # how often each class was to be predicted
    bad: list[tuple[int, str]]


def iterate_masked_metrics(
    config: PretrainConfig,
    learner: nn.Module,
    examples: ImageDataset,
    preprocess: Preprocess,
    device: Device,
    workers: int,
    places: range | None = None,
) -> Iterator[MaskedBatchMetrics]:
    """The objective on every batch of the examples.

    `places` are theirs among all that are held out, where they are a share of them: by these
    their patches are drawn.
    """
    places = range(len(examples)) if places is None else places
    objective = build_masked_objective(config, learner, preprocess)
    with eval_mode(learner), torch.inference_mode(), device.autocast():
        for batch in load_eval_batches(examples, preprocess, EVAL_BATCH_SIZE, workers):
            if not len(batch.indices):
                yield MaskedBatchMetrics(0.0, 0.0, 0, Counter(), batch.bad)
                continue
            images = batch.images.to(device.torch_device)
            drawn = make_held_out_corruption(
                config, learner, [places[index] for index in batch.indices.tolist()]
            )
            corruption = drawn.to(device.torch_device)
            losses, right = objective(images, corruption)
            wanted = objective.target.wanted(objective.hidden(images, corruption))
            colours = Counter(objective.target.colours(wanted).flatten().tolist())
            yield MaskedBatchMetrics(
                float(losses.sum()), float(right), len(losses), colours, batch.bad
            )


def build_masked_objective(
    config: PretrainConfig, learner: nn.Module, preprocess: Preprocess
) -> MaskedPatchLoss:
    assert isinstance(learner, MaskedViT)
    return build_masked_patch_loss(config, learner.vit.config, preprocess, learner)


def make_held_out_corruption(
    config: PretrainConfig, learner: nn.Module, indices: Iterable[int]
) -> PatchCorruption:
    """The corruption of held-out images, by their places among the examples."""
    assert isinstance(learner, MaskedViT)
    draw = build_mask_sampler(config, learner.vit.config)
    return draw(("held out", index) for index in indices)


def skip_unreadable_batches(batches: Iterator[ImageBatch]) -> Iterator[ImageBatch]:
    """Those with an image in them."""
    return (batch for batch in batches if len(batch.indices))
