"""Classification: one class for each image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from patchwords.data.batch_augment import mix_images
from patchwords.data.dataset import TRAIN, DatasetSplits, ImageDataset
from patchwords.data.loader import IMAGE, ImageBatch
from patchwords.evaluation.held_out import evaluate_classifier
from patchwords.tasks.classification.losses import (
    classification_loss,
    compute_class_weights,
    count_correct,
)
from patchwords.training.config import FinetuneConfig
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import HeldOutExamples, Objective
from patchwords.training.plan import ResolvedSetting
from patchwords.weights.pretrained import Pretrained


class Classification(Objective):
    """Classification: cross-entropy of the class labels, and accuracy."""

    needs_labels = True
    primary_metric, higher_is_better = "accuracy", True
    formats: ClassVar[Mapping[str, str]] = {"accuracy": ".1%"}
    caches_frozen = True
    class_loss = staticmethod(classification_loss)

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        return config, []

    @classmethod
    def classes(cls, data: DatasetSplits) -> tuple[str, ...]:
        return data.classes

    def sample_weights(self, train: ImageDataset) -> np.ndarray | None:
        """Weigh images so that --balance sample draws every class equally often."""
        if self.config.recipe.balance != "sample":
            return None
        weights = compute_class_weights(torch.from_numpy(train.count_per_class()))
        return weights.double().numpy()[train.labels]  # float64: they are summed over all images

    def build(self, backbone: InitialModel, data: DatasetSplits) -> nn.Module:
        self.num_classes = len(data.classes)
        self.class_weights: Tensor | None = None
        if self.config.recipe.balance == "loss":
            weights = compute_class_weights(torch.from_numpy(data.splits[TRAIN].count_per_class()))
            device = next(backbone.model.parameters()).device
            self.class_weights = weights.float().to(device)
        return backbone.model

    def prepare(self, batch: ImageBatch, step: int) -> ImageBatch:
        """Apply MixUp and CutMix, after which a target is a share of each class."""
        augment, seed = self.config.augment, self.config.seed
        images, targets = mix_images(
            batch.images, batch.targets, augment, seed, self.num_classes, step
        )
        return replace(batch, views={IMAGE: images}, targets=targets)

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of targets int64 [B], or float [B, classes] after mixing."""
        return self.label_loss(self.forward(learner, batch), batch)

    def label_loss(self, logits: Tensor, batch: ImageBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of logits [B, classes] by the labels, and the accuracy."""
        losses = self.class_loss(
            logits,
            batch.targets,
            label_smoothing=self.config.recipe.label_smoothing,
            class_weights=self.class_weights,
        )
        correct = count_correct(logits.detach(), batch.targets)
        return losses.mean(), {"accuracy": correct / len(batch)}

    def forward(self, learner: nn.Module, batch: ImageBatch) -> Tensor:
        """Compute logits [B, classes]."""
        images = batch.images
        if images.dtype == torch.uint8:  # else cached activations of the frozen layers
            images = self.preprocess.normalise(images)
        logits: Tensor = learner(images)
        return logits

    def held_out_loss(
        self, learner: nn.Module, batch: ImageBatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the plain loss, without weights or smoothing of training."""
        logits = self.forward(learner, batch)
        correct = count_correct(logits, batch.targets)
        return self.class_loss(logits, batch.targets).mean(), {"accuracy": correct / len(batch)}

    def evaluate(self, learner: nn.Module, examples: HeldOutExamples) -> dict[str, Any]:
        """Evaluate plain cross-entropy and accuracy by the faster path of prediction."""
        if examples.cached is not None:
            return super().evaluate(learner, examples)
        return evaluate_classifier(
            learner, examples.dataset, self.preprocess, examples.device, examples.workers
        )
