"""Pre-training: the main job with another aim, and what it adds to training for classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from patchwords.data.examples import Data
from patchwords.errors import ConfigError
from patchwords.model.config import ViTConfig
from patchwords.model.variants import resolve
from patchwords.train.aim import Aim
from patchwords.train.choice import Choice
from patchwords.train.classify import Classify
from patchwords.train.config import FinetuneConfig
from patchwords.train.finetune import Evaluate, FewShot, carry_out, in_all_processes
from patchwords.train.job import Job, prepare
from patchwords.train.masked import PredictMasked
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.progress import Display
from patchwords.train.start import DEFAULT_MODEL, who_said
from patchwords.train.task import Classification
from patchwords.weights.pretrained import Pretrained


def run(
    config: PretrainConfig,
    evaluator_of: Callable[[PretrainConfig], Evaluate],
    display: Display,
    fewshot: FewShot | None = None,
) -> Job:
    """As `finetune.run`; `evaluator_of` gets the config with everything decided."""
    with in_all_processes(config) as settings:
        job = prepare(settings, display, aim_of(settings))
        assert isinstance(job.config, PretrainConfig)
        return carry_out(job, evaluator_of(job.config), display, fewshot)


def aim_of(config: PretrainConfig) -> Aim:
    """What `--objective` asks for."""
    return PredictMasked() if config.learn.objective == "masked" else PretrainClasses()


@dataclass(frozen=True)
class PretrainClasses(Classify):
    """Classes by a head of two layers (Sec. 3.1), by softmax or each class by itself."""

    def settle(
        self, config: FinetuneConfig, data: Data, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[Choice]]:
        assert isinstance(config, PretrainConfig)
        config, of_loss = decide_loss(config, len(data.classes))
        config, of_head = decide_head(config, origin)
        return config, [Choice("objective", "supervised", "classes"), *of_loss, *of_head]

    def objective(self, job: Job, learner: nn.Module) -> Classification:
        assert isinstance(job.config, PretrainConfig)
        return replace(super().objective(job, learner), sigmoid=job.config.learn.loss == "sigmoid")


def decide_loss(config: PretrainConfig, classes: int) -> tuple[PretrainConfig, list[Choice]]:
    """Softmax, if nobody says otherwise; for sigmoids, a bias that fits the number of classes."""
    loss = config.learn.loss or "softmax"
    why = who_said(config) if config.learn.loss else "one label an image"
    choices = [Choice("loss", loss, why)]
    model = config.model_settings
    if loss == "sigmoid" and model.head_bias is None:
        model = replace(model, head_bias=uniform_bias(classes))
        why = f"-ln(classes - 1): every class starts at 1 in {classes:,}"
        choices.append(Choice("head_bias", model.head_bias, why))
    return replace(config, learn=replace(config.learn, loss=loss), model_settings=model), choices


def decide_head(
    config: PretrainConfig, origin: Pretrained | None
) -> tuple[PretrainConfig, list[Choice]]:
    """A tanh layer as wide as the model, if nobody says otherwise; a ResNet has none."""
    width = width_of(config, origin)
    head = config.learn.head or ("linear" if width is None else "tanh")
    if head == "tanh" and width is None:
        raise ConfigError("--head tanh: a ResNet's head is linear; leave it out")
    model, choices = config.model_settings, []
    if head == "tanh":
        size = model.representation_size or width
        model = replace(model, representation_size=size)
        why = f"a tanh layer of {size} before the classifier, as in Sec. 3.1"
        choices.append(Choice("head", head, why))
    return replace(config, learn=replace(config.learn, head=head), model_settings=model), choices


def uniform_bias(classes: int) -> float:
    """The bias at which a sigmoid gives every class the probability 1 / classes.

    big_vision's configs have the same to two digits: -6.9 for ImageNet's 1,000, -10 for the
    21,843 of ImageNet-21k.

    >>> round(uniform_bias(1000), 1), round(uniform_bias(21843), 1)
    (-6.9, -10.0)
    """
    return -math.log(max(classes - 1, 1))


def width_of(config: FinetuneConfig, origin: Pretrained | None) -> int | None:
    """D of the ViT that will be trained; None for a ResNet."""
    named = origin.model.config if origin else resolve(config.model or DEFAULT_MODEL).config
    if not isinstance(named, ViTConfig):
        return None
    return config.model_settings.width or named.width
