"""An objective with nothing around it: logits by a function, cross-entropy, accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.training.config import FinetuneConfig
from patchwords.training.objectives import Objective


class PlainClassification(Objective):
    primary_metric, higher_is_better = "accuracy", True

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__(FinetuneConfig(), Preprocess((1, 1)))
        self.forward = forward

    def build(self, backbone: Any, data: Any) -> nn.Module:
        return backbone.model

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = self.forward(batch.images)
        right = (logits.argmax(-1) == batch.targets).float().mean()
        return F.cross_entropy(logits, batch.targets), {"accuracy": right}
