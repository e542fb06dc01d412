"""An objective from outside the package: two crops of different sizes, and an EMA teacher.

The student sees a small crop, the teacher a large one; the student's features are drawn to the
teacher's, from which their running mean is taken (as in DINO). Both are of the whole batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.augment import TrainTransform
from patchwords.data.loader import EvalTransform, ImageBatch
from patchwords.models.build import Model
from patchwords.training.objectives import Objective, Views

MOMENTUM = 0.9
SMALL = 2  # sides of the large crop to one of the small crop


class StudentTeacher(nn.Module):
    """The backbone with a projection, and a copy of it that moves slowly."""

    center: Tensor

    def __init__(self, backbone: Model) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = nn.Linear(backbone.config.width, 8)
        nn.init.normal_(self.projection.weight, std=0.1, generator=torch.Generator().manual_seed(0))
        nn.init.zeros_(self.projection.bias)
        self.teacher = copy.deepcopy(backbone).requires_grad_(False)
        self.register_buffer("center", torch.zeros(8))

    def forward(self, small: Tensor, large: Tensor) -> tuple[Tensor, Tensor]:
        """-> [B, 8] of the student, [B, 8] of the teacher"""
        with torch.no_grad():
            seen_by_teacher = self.projection(self.teacher.forward_features(large)[:, 0])
        return self.projection(self.backbone.forward_features(small)[:, 0]), seen_by_teacher


class TwoViews(Objective):
    splittable = False
    primary_metric, higher_is_better = "agreement", True
    formats: ClassVar[Mapping[str, str]] = {"agreement": ".1%"}
    weight_decay_rules: ClassVar[Mapping[str, bool]] = {
        r"projection\.weight": True,
        r"projection\.bias": False,
        r"teacher\..+": False,
    }

    def build(self, backbone: Any, data: Any) -> StudentTeacher:
        return StudentTeacher(backbone.model)

    def views(self) -> Views:
        height, width = self.preprocess.image_size
        small = replace(self.preprocess, image_size=(height // SMALL, width // SMALL))
        augment, seed = self.config.augment, self.config.seed
        return Views(
            train={
                "large": TrainTransform(self.preprocess, augment, seed),
                "small": TrainTransform(small, augment, seed, view="small"),
            },
            evaluate={"large": EvalTransform(self.preprocess), "small": EvalTransform(small)},
        )

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        large, small = (self.preprocess.normalise(batch.views[name]) for name in ("large", "small"))
        student, teacher = learner(small, large)
        self.batch_center = teacher.mean(0)
        target = (teacher - learner.center).softmax(-1)
        loss = F.cross_entropy(student, target)
        return loss, {"agreement": (student.argmax(-1) == target.argmax(-1)).float().mean()}

    @torch.no_grad()
    def after_step(self, learner: nn.Module, step: int) -> None:
        assert isinstance(learner, StudentTeacher)
        for old, new in zip(
            learner.teacher.parameters(), learner.backbone.parameters(), strict=True
        ):
            old.lerp_(new, 1 - MOMENTUM)
        learner.center.lerp_(self.batch_center, 1 - MOMENTUM)
