"""Supervised pre-training: classes by a head of two layers, by softmax or sigmoids."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import nn

from patchwords.data.dataset import DatasetSplits
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.tasks.classification import Classification
from patchwords.tasks.classification.losses import sigmoid_loss
from patchwords.training.config import FinetuneConfig, PretrainConfig
from patchwords.training.model_setup import describe_setting_source, resolve_vit_width
from patchwords.training.objectives import HeldOutExamples, Objective
from patchwords.training.plan import ResolvedSetting
from patchwords.weights.pretrained import Pretrained


class SupervisedPretraining(Classification):
    """Supervised pre-training: a head of two layers (Sec. 3.1), by softmax or sigmoids."""

    def __init__(self, config: FinetuneConfig, preprocess: Preprocess) -> None:
        super().__init__(config, preprocess)
        assert isinstance(config, PretrainConfig)
        self.sigmoid = config.learn.loss == "sigmoid"
        if self.sigmoid:
            self.class_loss = sigmoid_loss

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        assert isinstance(config, PretrainConfig)
        config, of_loss = resolve_loss(config, len(data.classes))
        config, of_head = resolve_head(config, origin)
        return config, [ResolvedSetting("objective", "supervised", "classes"), *of_loss, *of_head]

    def evaluate(self, learner: nn.Module, examples: HeldOutExamples) -> dict[str, Any]:
        """Evaluate by the loss that the run trains on."""
        evaluate = Objective.evaluate if self.sigmoid else Classification.evaluate
        return evaluate(self, learner, examples)


def resolve_loss(
    config: PretrainConfig, classes: int
) -> tuple[PretrainConfig, list[ResolvedSetting]]:
    """Choose softmax by default; for sigmoids, a bias that fits the number of classes."""
    loss = config.learn.loss or "softmax"
    why = describe_setting_source(config) if config.learn.loss else "one label an image"
    choices = [ResolvedSetting("loss", loss, why)]
    model = config.model_settings
    if loss == "sigmoid" and model.head_bias is None:
        model = replace(model, head_bias=compute_uniform_head_bias(classes))
        why = f"-ln(classes - 1): every class starts at 1 in {classes:,}"
        choices.append(ResolvedSetting("head_bias", model.head_bias, why))
    return replace(config, learn=replace(config.learn, loss=loss), model_settings=model), choices


def resolve_head(
    config: PretrainConfig, origin: Pretrained | None
) -> tuple[PretrainConfig, list[ResolvedSetting]]:
    """Choose a tanh layer as wide as the model by default; a ResNet has none."""
    width = resolve_vit_width(config, origin)
    head = config.learn.head or ("linear" if width is None else "tanh")
    if head == "tanh" and width is None:
        raise ConfigError("--head tanh: a ResNet's head is linear; leave it out")
    model, choices = config.model_settings, []
    if head == "tanh":
        size = model.representation_size or width
        model = replace(model, representation_size=size)
        why = f"a tanh layer of {size} before the classifier, as in Sec. 3.1"
        choices.append(ResolvedSetting("head", head, why))
    return replace(config, learn=replace(config.learn, head=head), model_settings=model), choices


def compute_uniform_head_bias(classes: int) -> float:
    """Compute the bias at which a sigmoid gives every class the probability 1 / classes.

    big_vision's configs have the same to two digits: -6.9 for ImageNet's 1,000, -10 for the
    21,843 of ImageNet-21k.

    >>> round(compute_uniform_head_bias(1000), 1), round(compute_uniform_head_bias(21843), 1)
    (-6.9, -10.0)
    """
    return -math.log(max(classes - 1, 1))
