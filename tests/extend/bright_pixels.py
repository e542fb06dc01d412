"""A dense task from outside the package: which pixels are brighter than half the scale.

The mask is made of the same crop as the image: transforms of the same seed draw the same box.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.loader import IMAGE, ImageBatch, Transform
from patchwords.models.build import Model
from patchwords.training.objectives import HeldOutExamples, Objective, Views


@dataclass(frozen=True)
class MaskTransform:
    """Encoded image, seen at a place -> uint8 [H, W], 1 where it is bright."""

    crop: Transform
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.crop.shape[:2]

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int) -> np.ndarray:
        return (self.crop(data, epoch, sample, repeat).mean(-1) > 127).astype(np.uint8)


class DenseModel(nn.Module):
    """The backbone with a linear head on the patches of two layers."""

    def __init__(self, backbone: Model) -> None:
        super().__init__()
        self.backbone = backbone
        patch_size = backbone.config.patch_size
        self.decoder = nn.Conv2d(2 * backbone.config.width, patch_size**2, 1)
        nn.init.zeros_(self.decoder.weight)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> logits [B, H, W]"""
        layers = self.backbone.forward_intermediates(images, [0, -1])
        skip = self.backbone.config.num_prefix_tokens
        tokens = torch.cat([layers[0], layers[-1]], -1)[:, skip:]  # [B, N, 2 D]
        rows, columns = self.backbone.grid(images)
        maps = tokens.transpose(1, 2).unflatten(2, (rows, columns))  # [B, 2 D, H/P, W/P]
        return F.pixel_shuffle(self.decoder(maps), self.backbone.config.patch_size)[:, 0]


class BrightPixels(Objective):
    primary_metric, higher_is_better = "iou", True
    formats: ClassVar[Mapping[str, str]] = {"iou": ".1%", "pixels": ".1%"}
    weight_decay_rules: ClassVar[Mapping[str, bool]] = {
        r"decoder\.weight": True,
        r"decoder\.bias": False,
    }

    def build(self, backbone: Any, data: Any) -> DenseModel:
        return DenseModel(backbone.model)

    def views(self) -> Views:
        views = super().views()
        return Views(
            views.train,
            views.evaluate,
            train_targets={"mask": MaskTransform(views.train[IMAGE])},
            eval_targets={"mask": MaskTransform(views.evaluate[IMAGE])},
        )

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner(self.preprocess.normalise(batch.images))  # [B, H, W]
        mask = batch.targets["mask"]
        loss = F.binary_cross_entropy_with_logits(logits, mask.float())
        return loss, {"pixels": ((logits > 0) == mask.bool()).float().mean()}

    def evaluate(self, learner: nn.Module, examples: HeldOutExamples) -> dict[str, Any]:
        """Intersection over union, which is no mean over images."""
        both = either = 0
        with torch.inference_mode():
            for batch in examples.batches():
                bright = learner.eval()(self.preprocess.normalise(batch.images)) > 0
                mask = batch.targets["mask"].bool()
                both, either = (
                    both + int((bright & mask).sum()),
                    either + int((bright | mask).sum()),
                )
        return {**super().evaluate(learner, examples), "iou": both / max(either, 1)}
