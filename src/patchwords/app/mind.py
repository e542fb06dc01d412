"""What the model says of images, batch by batch, and where it looked.

Sizes: B batch, C channels, H W image, h x w patches, R representation.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from patchwords.app.batching import Batcher
from patchwords.app.limits import AppLimits
from patchwords.app.metrics import AppMetrics
from patchwords.evaluate.subject import LoadedModel

RequestKind = Literal["predict", "look"]


@dataclass(frozen=True)
class ImageAnalysis:
    """Everything that the page shows of one image."""

    scores: np.ndarray  # float32 [classes], probabilities
    features: np.ndarray  # float32 [R], what the classifier saw
    looked: np.ndarray | None  # [h, w], or None for a model that cannot tell


RolloutFunction = Callable[[torch.Tensor], np.ndarray]  # float [1, C, H, W], normalised -> [h, w]


class InferenceWorker:
    """A model, and the one thread that asks it. `predict` gives scores, `look` gives Look."""

    def __init__(
        self,
        subject: LoadedModel,
        limits: AppLimits,
        metrics: AppMetrics,
        looking: RolloutFunction | None = None,
    ) -> None:
        self.subject, self.looking = subject, looking
        self.fast = subject.source.for_inference(subject.device)
        self.batcher = Batcher(
            self.answer, limits.batch, limits.wait_seconds, limits.requests, metrics.batch
        )

    def ask(self, kind: RequestKind, pixels: np.ndarray) -> Future[Any]:
        """uint8 [H, W, C] -> the answer to come; images of one size are answered together."""
        return self.batcher.ask((kind, pixels.shape), pixels)

    def answer(
        self, what: tuple[RequestKind, tuple[int, ...]], images: list[np.ndarray]
    ) -> list[np.ndarray] | list[ImageAnalysis]:
        batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)  # [B, C, H, W]
        if what[0] == "predict":
            return list(self.fast.scores(batch, self.subject.device))
        return self.look(batch)

    def look(self, images: torch.Tensor) -> list[ImageAnalysis]:
        """uint8 [B, C, H, W] -> of each image"""
        model, device = self.fast.model, self.subject.device
        with torch.inference_mode(), device.autocast():
            x = self.subject.preprocess.normalise(images.to(device.torch_device))
            features = model.forward_features(x)
            scores = model.forward_head(features).float().softmax(-1).cpu().numpy()
            represented = model.forward_head(features, pre_logits=True).float().cpu().numpy()
        found = []
        for number, (row, seen) in enumerate(zip(scores, represented, strict=True)):
            # one by one: attention of a whole batch could fill the memory
            looked = self.looking(x[number : number + 1]) if self.looking else None
            found.append(ImageAnalysis(row, seen, looked))
        return found

    def close(self) -> None:
        self.batcher.close()
