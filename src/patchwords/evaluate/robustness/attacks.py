"""Attacks by gradients: noise, hardly visible, that is made to mislead one model.

FGSM (Goodfellow et al., arXiv 1412.6572) makes one step along the sign of the gradient of the
loss; PGD (Madry et al., arXiv 1706.06083) makes several from a place drawn near the image, and
goes back into the ball after each. No pixel moves by more than epsilon, in levels of 255, nor out
of 0..255; the result is not rounded to whole levels. The loss is the cross-entropy of the true
class, in float32, of the model as it is in evaluation; its parameters and their gradients are not
touched. Naseer et al. (arXiv 2105.10497, Sec. 3.4) let PGD make 5 steps; they are of 2.5 epsilon /
steps here, so that the whole ball can be reached (Madry et al. have the same).

Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from patchwords.evaluate.robustness.disturbance import Perturbation, PerturbationBatch
from patchwords.evaluate.robustness.draws import PerImageRandom
from patchwords.evaluate.subject import LoadedModel

ATTACK_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)  # of 255
NUM_PGD_STEPS = 5
PGD_REACH = 2.5  # epsilons, of all steps of PGD together


def fgsm_attack(subject: LoadedModel, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """One step: [B, C, H, W] of 0..255 and int64 [B] -> float32 [B, C, H, W] of 0..255."""
    images = images.float()
    return take_sign_step(images, compute_loss_gradient(subject, images, labels), epsilon)


def take_sign_step(images: Tensor, gradient: Tensor, epsilon: float) -> Tensor:
    """Where the gradient is 0, nothing moves."""
    return (images + epsilon * gradient.sign()).clamp(0, 255)


def pgd_attack(
    subject: LoadedModel,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    start: Tensor,
    steps: int = NUM_PGD_STEPS,
) -> Tensor:
    """Several steps: [B, C, H, W] of 0..255 and int64 [B] -> float32 [B, C, H, W] of 0..255.

    Args:
        start: [B, C, H, W] in [-1, 1], where in the ball to begin, in epsilons.
    """
    images = images.float()
    lowest, highest = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=255)
    attacked = (images + epsilon * start).clamp(0, 255)
    for _ in range(steps):
        uphill = compute_loss_gradient(subject, attacked, labels).sign()
        attacked = attacked + PGD_REACH * epsilon / steps * uphill
        attacked = torch.minimum(torch.maximum(attacked, lowest), highest)
    return attacked


def compute_loss_gradient(subject: LoadedModel, images: Tensor, labels: Tensor) -> Tensor:
    """Of each image's loss by its own pixels: float32 [B, C, H, W] of 0..255 -> the same."""
    with float32_gradients(images.device):
        pixels = images.detach().clone().requires_grad_()
        loss = summed_cross_entropy(subject, pixels, labels)
        [gradient] = torch.autograd.grad(loss, pixels)  # of nothing else: no parameter sees it
    return gradient


def summed_cross_entropy(subject: LoadedModel, images: Tensor, labels: Tensor) -> Tensor:
    """[B, C, H, W] of 0..255 -> the sum over the images, whose gradients are then their own"""
    logits = subject.model(subject.preprocess.normalise(images)).float()
    return F.cross_entropy(logits, labels, reduction="sum")


@contextmanager
def float32_gradients(device: torch.device) -> Iterator[None]:
    """Gradients, and in float32 throughout: bfloat16 would round many to 0, or to another sign.

    The way back is in it too, since on a CPU autocast takes hold of that as well.
    """
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


def perturb_with_fgsm(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    images = batch.images.float()
    gradient = batch.once(
        "gradient of the loss", lambda: compute_loss_gradient(batch.subject, images, batch.labels)
    )
    return take_sign_step(images, gradient, level)


def perturb_with_pgd(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    draws = PerImageRandom(seed, "pgd", batch.indices, batch.images.device)
    start = draws.uniform(-1, 1, *batch.images.shape[1:])
    return pgd_attack(batch.subject, batch.images, batch.labels, level, start)


PUBLISHED_ATTACKS = "Naseer et al. (2021, Sec. 3.4, Fig. 13) give FGSM and PGD as a figure only."
ATTACK_PERTURBATIONS = (
    Perturbation(
        name="attack-fgsm",
        family="attack",
        title="FGSM, one step",
        x_label="epsilon, of 255",
        levels=ATTACK_EPSILONS,
        published=PUBLISHED_ATTACKS,
        change=perturb_with_fgsm,
        usual=False,
    ),
    Perturbation(
        name="attack-pgd",
        family="attack",
        title=f"PGD, {NUM_PGD_STEPS} steps",
        x_label="epsilon, of 255",
        levels=ATTACK_EPSILONS,
        published=PUBLISHED_ATTACKS,
        change=perturb_with_pgd,
        seeds=True,
        usual=False,
    ),
)
