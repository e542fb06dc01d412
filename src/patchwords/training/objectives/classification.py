"""Training for classes: what fine-tuning does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from patchwords.data.dataset import TRAIN, DatasetSplits
from patchwords.training.config import FinetuneConfig
from patchwords.training.inputs.batches import CachedBatchPreparer, ImageBatchPreparer
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives.losses import ClassificationLoss, compute_class_weights
from patchwords.training.plan import ResolvedSetting
from patchwords.training.run import TrainingRun
from patchwords.weights.pretrained import Pretrained


@dataclass(frozen=True)
class Classify:
    """One class for each image."""

    objective_name: Literal["supervised", "masked"] = "supervised"

    def classes(self, data: DatasetSplits) -> tuple[str, ...]:
        return data.classes

    def settle(
        self, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        return config, []

    def learner(self, start: InitialModel, config: FinetuneConfig) -> nn.Module:
        return start.model

    def preparation(self, job: TrainingRun) -> ImageBatchPreparer | CachedBatchPreparer:
        if job.front is not None:
            return CachedBatchPreparer(job.device)
        return ImageBatchPreparer(job.config, job.device, len(job.data.classes))

    def objective(self, job: TrainingRun, learner: nn.Module) -> ClassificationLoss:
        recipe, weights = job.config.recipe, None
        normalise = job.start.preprocess.normalise
        if recipe.balance == "loss":
            counts = torch.from_numpy(job.data.splits[TRAIN].count_per_class())
            weights = compute_class_weights(counts).float().to(job.device.torch_device)

        def forward(images: Tensor) -> Tensor:
            return learner(normalise(images))

        ask = forward if job.front is None else job.front.rest
        return ClassificationLoss(ask, recipe.label_smoothing, weights)
