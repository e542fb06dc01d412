"""Losses and metrics of class labels.

Sizes: B images.
"""

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
    """Compute the softmax cross-entropy of each image, [B], of logits [B, classes].

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
    """Compute the binary cross-entropy of each image, [B], summed over the classes.

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
    """Compute class weights of images per class: rare ones weigh more, the mean image 1.

    >>> compute_class_weights(torch.tensor([10, 30]))
    tensor([2.0000, 0.6667])
    """
    present = (counts > 0).sum()
    return torch.where(counts > 0, counts.sum() / (present * counts.clamp(min=1)), 0.0)


def count_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Count the images whose (largest) target has the highest logit, as []."""
    wanted = targets if targets.dim() == 1 else targets.argmax(-1)
    return (logits.argmax(-1) == wanted).sum()
