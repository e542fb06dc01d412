"""The objective: what a batch of images costs the model.

Sizes: B images, C channels, H W image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Objective(Protocol):
    """Runs the model on images and says what it got wrong.

    `targets` belong to the images, one each: a slice of both is a smaller batch.
    """

    def __call__(self, images: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
        """uint8 [B, C, H, W] and targets -> ([B] losses in float32, [] how many were right)

        An image that is right in parts counts by its share.
        """
        ...


@dataclass(frozen=True)
class ClassificationLoss:
    """One class for each image."""

    # uint8 images, or what frozen layers made of them -> logits, compiled or wrapped as it may be
    forward: Callable[[Tensor], Tensor]
    label_smoothing: float = 0.0
    class_weights: Tensor | None = None  # [classes]
    sigmoid: bool = False  # each class by itself, in place of a softmax over all

    def __call__(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Targets [B], or after MixUp and CutMix [B, classes]."""
        logits = self.forward(images)
        loss = sigmoid_loss if self.sigmoid else classification_loss
        losses = loss(
            logits,
            targets,
            label_smoothing=self.label_smoothing,
            class_weights=self.class_weights,
        )
        return losses, count_correct(logits.detach(), targets)


def classification_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Softmax cross-entropy of each image: [B, classes], [B] or [B, classes] -> [B].

    Targets are class indices, or, after MixUp and CutMix, shares that sum to 1. Computed in
    float32 whatever the logits are. Class weights have a mean of 1 over the training images, so
    that balancing does not change the learning rate in disguise.
    """
    return F.cross_entropy(
        logits.float(),
        targets,
        weight=class_weights,
        label_smoothing=label_smoothing,
        reduction="none",
    )


def sigmoid_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Every class as a yes or no of its own, summed over the classes: -> [B].

    As `sigmoid_xent` in utils.py of big_vision. Targets, smoothing and weights are those of
    `classification_loss`; the weight of an image is that of its class.
    """
    classes = logits.shape[-1]
    wanted = F.one_hot(targets, classes) if targets.dim() == 1 else targets  # [B, classes]
    wanted = wanted.float()
    smooth = wanted * (1 - label_smoothing) + label_smoothing / classes
    losses = F.binary_cross_entropy_with_logits(logits.float(), smooth, reduction="none").sum(-1)
    return losses if class_weights is None else losses * (wanted @ class_weights)


def compute_class_weights(counts: Tensor) -> Tensor:
    """[classes] images per class -> [classes] weights: rare classes weigh more, mean image 1.

    >>> compute_class_weights(torch.tensor([10, 30]))
    tensor([2.0000, 0.6667])
    """
    present = (counts > 0).sum()
    return torch.where(counts > 0, counts.sum() / (present * counts.clamp(min=1)), 0.0)


def count_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """[] how many images have their (largest) target on top."""
    wanted = targets if targets.dim() == 1 else targets.argmax(-1)
    return (logits.argmax(-1) == wanted).sum()
