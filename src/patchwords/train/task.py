"""The objective: what a batch of images costs the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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


def balanced_weights(counts: Tensor) -> Tensor:
    """[classes] images per class -> [classes] weights: rare classes weigh more, mean image 1.

    >>> balanced_weights(torch.tensor([10, 30]))
    tensor([2.0000, 0.6667])
    """
    present = (counts > 0).sum()
    return torch.where(counts > 0, counts.sum() / (present * counts.clamp(min=1)), 0.0)


def count_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """[] how many images have their (largest) target on top."""
    wanted = targets if targets.dim() == 1 else targets.argmax(-1)
    return (logits.argmax(-1) == wanted).sum()
