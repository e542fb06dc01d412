"""Gradient attacks: FGSM, PGD and the universal adversarial patch.

FGSM (Goodfellow et al., arXiv 1412.6572) makes one step along the sign of the gradient of the
loss; PGD (Madry et al., arXiv 1706.06083) makes several from a random start near the image, and
projects back into the ball after each. No pixel moves by more than epsilon, in levels of 255, nor
out of 0..255; the result is not rounded to whole levels. The loss is the cross-entropy of the true
class, in float32, of the model in evaluation mode; its parameters and their gradients are not
touched. Naseer et al. (arXiv 2105.10497, Sec. 3.4) let PGD make 5 steps; here they are of 2.5
epsilon / steps, so that the whole ball can be reached (Madry et al. have the same).

Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.errors import DataError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness.perturbation import (
    NamedProgress,
    PerImageRandom,
    Perturbation,
    PerturbationBatch,
    PerturbationFn,
)
from patchwords.rng import numpy_generator, torch_generator

ATTACK_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)  # of 255
NUM_PGD_STEPS = 5
PGD_REACH = 2.5  # epsilons, summed over the steps of PGD


def fgsm_attack(loaded: LoadedModel, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """Attack with one step: [B, C, H, W] of 0..255, int64 [B] -> float32 [B, C, H, W] of 0..255."""
    images = images.float()
    return take_sign_step(images, compute_loss_gradient(loaded, images, labels), epsilon)


def take_sign_step(images: Tensor, gradient: Tensor, epsilon: float) -> Tensor:
    """Step along the sign of the gradient; pixels with gradient 0 do not move."""
    return (images + epsilon * gradient.sign()).clamp(0, 255)


def pgd_attack(
    loaded: LoadedModel,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    start: Tensor,
    steps: int = NUM_PGD_STEPS,
) -> Tensor:
    """Attack with several steps: [B, C, H, W] of 0..255, int64 [B] -> float32 [B, C, H, W].

    Args:
        start: [B, C, H, W] in [-1, 1], the start within the ball, in epsilons.
    """
    images = images.float()
    lowest, highest = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=255)
    attacked = (images + epsilon * start).clamp(0, 255)
    for _ in range(steps):
        uphill = compute_loss_gradient(loaded, attacked, labels).sign()
        attacked = attacked + PGD_REACH * epsilon / steps * uphill
        attacked = torch.minimum(torch.maximum(attacked, lowest), highest)
    return attacked


def compute_loss_gradient(loaded: LoadedModel, images: Tensor, labels: Tensor) -> Tensor:
    """Compute the gradient of each image's loss by its pixels: [B, C, H, W] -> the same."""
    with float32_gradients(images.device):
        pixels = images.detach().clone().requires_grad_()
        loss = summed_cross_entropy(loaded, pixels, labels)
        [gradient] = torch.autograd.grad(
            loss, pixels
        )  # only of the pixels: parameters get no gradient
    return gradient


def summed_cross_entropy(loaded: LoadedModel, images: Tensor, labels: Tensor) -> Tensor:
    """[B, C, H, W] of 0..255 -> loss summed over images, so that gradients stay per image."""
    logits = loaded.model(loaded.preprocess.normalise(images)).float()
    return F.cross_entropy(logits, labels, reduction="sum")


@contextmanager
def float32_gradients(device: torch.device) -> Iterator[None]:
    """Enable gradients, in float32: bfloat16 would round many to 0 or flip their sign.

    The backward pass belongs inside as well, since autocast on a CPU also affects it.
    """
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


def perturb_with_fgsm(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    images = batch.images.float()
    gradient = batch.once(
        "gradient of the loss", lambda: compute_loss_gradient(batch.loaded, images, batch.labels)
    )
    return take_sign_step(images, gradient, level)


def perturb_with_pgd(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    draws = PerImageRandom(seed, "pgd", batch.indices, batch.images.device)
    start = draws.uniform(-1, 1, *batch.images.shape[1:])
    return pgd_attack(batch.loaded, batch.images, batch.labels, level, start)


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


# The universal adversarial patch: one square that misleads a model anywhere in an image.
#
# Brown et al., "Adversarial Patch" (arXiv 1712.09665), untargeted as in Naseer et al. (arXiv
# 2105.10497, Sec. 3.4): a square of pixels is trained on training images, at random places and in
# the sizes that it will be judged in, to raise the cross-entropy of the true class; unlike there it
# is not rotated. Each step moves its pixels along the sign of the gradient, by less and less.
#
# A square that hides a part of the image already costs accuracy, so a grey one and one of random
# pixels are measured as controls, with the same sizes and positions.
#
# Sizes: B batch, C channels, H W image, s side of the pasted square, S of the trained one.


PATCH_AREAS = (1.0, 2.5, 5.0, 10.0)  # percent of the image
NUM_PATCH_STEPS = 300
PATCH_BATCH_SIZE = 16  # images of a step
NUM_PATCH_TRAINING_IMAGES = 512  # decoded once
INITIAL_STEP_SIZE = 32.0  # of 255; falls to about 0
GREY_LEVEL = 127.5


def train_adversarial_patch(
    loaded: LoadedModel, training: ImageDataset, seed: int, progress: NamedProgress, steps: int
) -> Tensor:
    """Train the patch of a seed against one model -> float32 [C, S, S] of 0..255.

    Args:
        training: images that the model is not evaluated on, with labels by the model's classes.

    Raises DataError if no drawn image can be read.
    """
    pool, labels = read_patch_training_images(loaded, training, seed)
    channels, height, width = pool.shape[1:]
    sides = [compute_patch_side(area, height, width) for area in PATCH_AREAS]
    own = torch_generator(seed, "patch training")
    patch = (255 * torch.rand(channels, sides[-1], sides[-1], generator=own)).to(pool.device)
    for step in range(steps):
        chosen = torch.randint(len(pool), (PATCH_BATCH_SIZE,), generator=own)
        side = sides[int(torch.randint(len(sides), (), generator=own))]
        corners = torch.rand(PATCH_BATCH_SIZE, 2, generator=own).to(pool.device)
        chosen = chosen.to(pool.device)
        uphill = compute_patch_gradient(
            loaded, patch, pool[chosen], labels[chosen], side, corners
        ).sign()
        patch = (patch + INITIAL_STEP_SIZE * (1 - step / steps) * uphill).clamp(0, 255)
        progress(f"{loaded.name}: patch {seed}", step + 1, steps)
    return patch


def read_patch_training_images(
    loaded: LoadedModel, training: ImageDataset, seed: int
) -> tuple[Tensor, Tensor]:
    """Read a draw of training images -> uint8 [n, C, H, W], int64 [n], on the device."""
    labelled = np.flatnonzero(training.labels >= 0)
    chosen = training.select(
        numpy_generator(seed, "patch pool").permutation(labelled)[:NUM_PATCH_TRAINING_IMAGES]
    )
    device = loaded.device.torch_device
    batches = [
        batch
        for batch in load_eval_batches(
            chosen, loaded.preprocess, PATCH_BATCH_SIZE, loaded.workers_for(chosen)
        )
        if len(batch.indices)
    ]
    if not batches:
        raise DataError(
            f"none of the training images that have labels can be read ({len(chosen):,} tried): "
            "a patch needs some to learn on"
        )
    images = torch.cat([batch.images for batch in batches]).to(device)
    return images, torch.cat([batch.targets for batch in batches]).to(device)


def compute_patch_gradient(
    loaded: LoadedModel, patch: Tensor, images: Tensor, labels: Tensor, side: int, corners: Tensor
) -> Tensor:
    """Compute the gradient of the loss by the pixels of the patch: [C, S, S]."""
    with float32_gradients(patch.device):
        pixels = patch.detach().clone().requires_grad_()
        loss = summed_cross_entropy(
            loaded, paste_patch(images, resize_patch(pixels, side), corners), labels
        )
        [gradient] = torch.autograd.grad(loss, pixels)
    return gradient


def paste_patch(images: Tensor, patch: Tensor, corners: Tensor) -> Tensor:
    """Paste a patch [C, s, s] into [B, C, H, W] of 0..255 -> float32 [B, C, H, W].

    Args:
        corners: [B, 2] in [0, 1), position among the possible ones, down and to the right: the same
            numbers put patches of all sizes in about the same place.
    """
    side = patch.shape[-1]
    room = torch.tensor([length - side + 1 for length in images.shape[2:]], device=images.device)
    tops, lefts = (corners * room).long().unbind(1)  # [B]
    along = torch.arange(side, device=images.device)
    rows, columns = tops[:, None] + along, lefts[:, None] + along  # [B, s]
    patched = images.float().permute(0, 2, 3, 1).clone()  # [B, H, W, C]
    which = torch.arange(len(images), device=images.device)[:, None, None]
    patched[which, rows[:, :, None], columns[:, None, :]] = patch.permute(1, 2, 0)
    return patched.permute(0, 3, 1, 2)  # [B, C, H, W]


def compute_patch_side(area: float, height: int, width: int) -> int:
    """Compute the side of a square that covers this percentage of the image; at least 1."""
    return min(max(1, round(math.sqrt(area / 100 * height * width))), height, width)


def resize_patch(patch: Tensor, side: int) -> Tensor:
    """Resize [C, S, S] -> [C, side, side], bilinear with antialiasing."""
    # As a matrix product: on a GPU the backward pass of `interpolate` is not deterministic.
    whole = torch.eye(patch.shape[-1], device=patch.device)[None, None]
    weights = F.interpolate(
        whole, (side, patch.shape[-1]), mode="bilinear", align_corners=False, antialias=True
    )[0, 0]  # [side, S]
    return weights @ patch @ weights.T


def match_channels(patch: Tensor, channels: int) -> Tensor:
    """[C, s, s] -> [channels, s, s]: grey as the mean of colours, colours as copies of grey."""
    if len(patch) == channels:
        return patch
    return patch.mean(0, keepdim=True).expand(channels, -1, -1)


def paste_patch_at_level(
    batch: PerturbationBatch, patch: Tensor, level: float, seed: int
) -> Tensor:
    """Paste a patch [C, S, S] that covers `level` percent of each image."""
    _, channels, height, width = batch.images.shape
    scaled = resize_patch(match_channels(patch, channels), compute_patch_side(level, height, width))
    corners = PerImageRandom(seed, "patch place", batch.indices, batch.images.device).uniform(
        0, 1, 2
    )
    return paste_patch(batch.images, scaled.to(batch.images.device), corners)


def prepare_adversarial_patch(
    loaded: LoadedModel, training: ImageDataset, seed: int, progress: NamedProgress
) -> PerturbationFn:
    """Train a patch, and return the change that pastes it."""
    patch = train_adversarial_patch(loaded, training, seed, progress, NUM_PATCH_STEPS)

    def change(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
        return paste_patch_at_level(batch, patch, level, seed)

    return change


def paste_noise_patch(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """Paste random pixels, the same for all images of a seed: a control."""
    _, channels, height, width = batch.images.shape
    side = compute_patch_side(level, height, width)
    own = torch_generator(seed, "patch of noise", side)
    return paste_patch_at_level(
        batch, 255 * torch.rand(channels, side, side, generator=own), level, seed
    )


def paste_grey_patch(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
    """Paste a grey square: a control that only hides a part."""
    return paste_patch_at_level(batch, torch.full((1, 1, 1), GREY_LEVEL), level, seed)


PUBLISHED_PATCHES = (
    "The patches of random pixels and of grey are controls: what hiding as large a part does by "
    "itself. Naseer et al. (2021, Sec. 3.4, Fig. 12; 5 patches) give the adversarial one as a "
    "figure only; later work finds ViTs more vulnerable to optimised patches than CNNs are (Gu et "
    "al., arXiv 2111.10659)."
)
PATCH_PERTURBATIONS = (
    Perturbation(
        name="patch-adversarial",
        family="patch",
        title="Adversarial patch",
        x_label="area covered, %",
        levels=PATCH_AREAS,
        published=PUBLISHED_PATCHES,
        prepare=prepare_adversarial_patch,
        seeds=True,
        transfers=True,
        usual=False,
    ),
    Perturbation(
        name="patch-noise",
        family="patch",
        title="Patch of random pixels",
        x_label="area covered, %",
        levels=PATCH_AREAS,
        published=PUBLISHED_PATCHES,
        change=paste_noise_patch,
        seeds=True,
        usual=False,
    ),
    Perturbation(
        name="patch-grey",
        family="patch",
        title="Grey patch",
        x_label="area covered, %",
        levels=PATCH_AREAS,
        published=PUBLISHED_PATCHES,
        change=paste_grey_patch,
        seeds=True,
        usual=False,
    ),
)
