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

from patchwords.data.examples import Examples
from patchwords.data.loader import Batch, eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import sum_over, together
from patchwords.errors import DataError
from patchwords.evaluate.classify import evaluating
from patchwords.evaluate.held_out import BATCH, measure, own_share
from patchwords.model.masked import Corruption, MaskedViT
from patchwords.train.finetune import Evaluate
from patchwords.train.masked import MaskedPrediction, draw_of, prediction
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.task import sigmoid_loss


def evaluator_of(config: PretrainConfig) -> Evaluate:
    """What measures a run of this config while it trains."""
    if config.learn.objective == "masked":
        return partial(measure_masked, config)
    return measure_sigmoid if config.learn.loss == "sigmoid" else measure


def measure_sigmoid(
    model: nn.Module, examples: Examples, preprocess: Preprocess, device: Device, workers: int
) -> dict[str, Any]:
    """Loss and accuracy as `held_out.measure` has them, but the loss that sigmoids train on."""
    share = examples.select(own_share(examples))
    return over_all(together(lambda: sums_of_sigmoids(model, share, preprocess, device, workers)))


def sums_of_sigmoids(
    model: nn.Module, examples: Examples, preprocess: Preprocess, device: Device, workers: int
) -> tuple[float, float, int]:
    """(loss, right, images)"""
    loss, right, images = 0.0, 0, 0
    with evaluating(model), torch.inference_mode(), device.autocast():
        for batch in readable(eval_batches(examples, preprocess, BATCH, workers)):
            labels = batch.labels.to(device.torch_device)
            logits = model(preprocess.normalise(batch.images.to(device.torch_device)))
            loss += float(sigmoid_loss(logits, labels).sum())
            right += int((logits.argmax(-1) == labels).sum())
            images += len(labels)
    return loss, right, images


def measure_masked(
    config: PretrainConfig,
    learner: nn.Module,
    examples: Examples,
    preprocess: Preprocess,
    device: Device,
    workers: int,
) -> dict[str, Any]:
    """Loss and accuracy of the colours of corrupted patches."""
    places = own_share(examples)
    share = examples.select(places)
    seen = together(
        lambda: list(answers(config, learner, share, preprocess, device, workers, places))
    )
    return over_all(
        (
            sum(answer.loss for answer in seen),
            sum(answer.right for answer in seen),
            sum(answer.images for answer in seen),
        )
    )


def over_all(sums: tuple[float, float, int]) -> dict[str, Any]:
    """(loss, right, images) of this process's share -> the row of all shares."""
    loss, right, images = sum_over(torch.tensor(sums, dtype=torch.float64)).tolist()
    return summary(loss, right, int(images))


def summary(loss: float, right: float, images: int) -> dict[str, Any]:
    """Sums over images -> a row of metrics.jsonl."""
    if not images:
        raise DataError("none of the validation images can be read; patchwords doctor says why")
    return {"loss": loss / images, "accuracy": right / images, "images": images}


@dataclass(frozen=True)
class Answer:
    """Of one batch."""

    loss: float  # sum over the images
    right: float
    images: int
    colours: Counter[int]  # how often each class was to be predicted
    bad: list[tuple[int, str]]


def answers(
    config: PretrainConfig,
    learner: nn.Module,
    examples: Examples,
    preprocess: Preprocess,
    device: Device,
    workers: int,
    places: range | None = None,
) -> Iterator[Answer]:
    """The objective on every batch of the examples.

    `places` are theirs among all that are held out, where they are a share of them: by these
    their patches are drawn.
    """
    places = range(len(examples)) if places is None else places
    objective = objective_of(config, learner, preprocess)
    with evaluating(learner), torch.inference_mode(), device.autocast():
        for batch in eval_batches(examples, preprocess, BATCH, workers):
            if not len(batch.indices):
                yield Answer(0.0, 0.0, 0, Counter(), batch.bad)
                continue
            images = batch.images.to(device.torch_device)
            drawn = hide(config, learner, [places[index] for index in batch.indices.tolist()])
            corruption = drawn.to(device.torch_device)
            losses, right = objective(images, corruption)
            wanted = objective.target.wanted(objective.hidden(images, corruption))
            colours = Counter(objective.target.colours(wanted).flatten().tolist())
            yield Answer(float(losses.sum()), float(right), len(losses), colours, batch.bad)


def objective_of(
    config: PretrainConfig, learner: nn.Module, preprocess: Preprocess
) -> MaskedPrediction:
    assert isinstance(learner, MaskedViT)
    return prediction(config, learner.vit.config, preprocess, learner)


def hide(config: PretrainConfig, learner: nn.Module, indices: Iterable[int]) -> Corruption:
    """The corruption of held-out images, by their places among the examples."""
    assert isinstance(learner, MaskedViT)
    draw = draw_of(config, learner.vit.config)
    return draw(("held out", index) for index in indices)


def readable(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Those with an image in them."""
    return (batch for batch in batches if len(batch.indices))
