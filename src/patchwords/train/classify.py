"""Training for classes: what fine-tuning does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from patchwords.data.examples import TRAIN, Data
from patchwords.train.choice import Choice
from patchwords.train.config import FinetuneConfig
from patchwords.train.feed import Prepare, PrepareKept
from patchwords.train.job import Job
from patchwords.train.start import Start
from patchwords.train.task import Classification, balanced_weights
from patchwords.weights.pretrained import Pretrained


@dataclass(frozen=True)
class Classify:
    """One class for each image."""

    objective_name: Literal["supervised", "masked"] = "supervised"

    def classes(self, data: Data) -> tuple[str, ...]:
        return data.classes

    def settle(
        self, config: FinetuneConfig, data: Data, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[Choice]]:
        return config, []

    def learner(self, start: Start, config: FinetuneConfig) -> nn.Module:
        return start.model

    def preparation(self, job: Job) -> Prepare | PrepareKept:
        if job.front is not None:
            return PrepareKept(job.device)
        return Prepare(job.config, job.device, len(job.data.classes))

    def objective(self, job: Job, learner: nn.Module) -> Classification:
        recipe, weights = job.config.recipe, None
        normalise = job.start.preprocess.normalise
        if recipe.balance == "loss":
            counts = torch.from_numpy(job.data.splits[TRAIN].count_per_class())
            weights = balanced_weights(counts).float().to(job.device.torch_device)

        def forward(images: Tensor) -> Tensor:
            return learner(normalise(images))

        ask = forward if job.front is None else job.front.rest
        return Classification(ask, recipe.label_smoothing, weights)
