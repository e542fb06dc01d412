"""The universal adversarial patch: one square that misleads a model wherever it is pasted.

Brown et al., "Adversarial Patch" (arXiv 1712.09665), untargeted as in Naseer et al. (arXiv
2105.10497, Sec. 3.4): a square of pixels is trained on training images, at random places and in
the sizes that it will be judged in, to raise the cross-entropy of the true class; unlike there it
is not rotated. Each step moves its pixels along the sign of the gradient, by less and less.

A square that hides a part of the image does harm by that alone, so a grey one and one of random
pixels are measured beside it, of the same sizes and at the same places.

Sizes: B batch, C channels, H W image, s side of the pasted square, S of the trained one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from patchwords.data.examples import Examples
from patchwords.data.loader import eval_batches
from patchwords.errors import DataError
from patchwords.evaluate.robustness.attacks import exact_gradients, loss_of
from patchwords.evaluate.robustness.disturbance import Batch, Change, Disturbance, Progress
from patchwords.evaluate.robustness.draws import Draws
from patchwords.evaluate.subject import Subject
from patchwords.noise import numpy_generator, torch_generator

AREAS = (1.0, 2.5, 5.0, 10.0)  # percent of the image
STEPS = 300
BATCH = 16  # images of a step
POOL = 512  # training images, decoded once and kept
FIRST_STEP = 32.0  # of 255; the last one is near 0
GREY = 127.5


def train_patch(
    subject: Subject, training: Examples, seed: int, progress: Progress, steps: int
) -> Tensor:
    """float32 [C, S, S] of 0..255, the patch of a seed, made to mislead one subject.

    Args:
        training: images that it is not judged on, with labels that are places in the subject's.

    Raises DataError where no image that is drawn can be read.
    """
    pool, labels = read_pool(subject, training, seed)
    channels, height, width = pool.shape[1:]
    sides = [side_of(area, height, width) for area in AREAS]
    own = torch_generator(seed, "patch training")
    patch = (255 * torch.rand(channels, sides[-1], sides[-1], generator=own)).to(pool.device)
    for step in range(steps):
        chosen = torch.randint(len(pool), (BATCH,), generator=own)
        side = sides[int(torch.randint(len(sides), (), generator=own))]
        corners = torch.rand(BATCH, 2, generator=own).to(pool.device)
        chosen = chosen.to(pool.device)
        uphill = patch_gradient(subject, patch, pool[chosen], labels[chosen], side, corners).sign()
        patch = (patch + FIRST_STEP * (1 - step / steps) * uphill).clamp(0, 255)
        progress(f"{subject.name}: patch {seed}", step + 1, steps)
    return patch


def read_pool(subject: Subject, training: Examples, seed: int) -> tuple[Tensor, Tensor]:
    """uint8 [n, C, H, W] and int64 [n], on the subject's device: a draw of the training images."""
    labelled = np.flatnonzero(training.labels >= 0)
    chosen = training.select(numpy_generator(seed, "patch pool").permutation(labelled)[:POOL])
    device = subject.device.torch_device
    batches = [
        batch
        for batch in eval_batches(chosen, subject.preprocess, BATCH, subject.workers_for(chosen))
        if len(batch.indices)
    ]
    if not batches:
        raise DataError(
            f"none of the training images that have labels can be read ({len(chosen):,} tried): "
            "a patch needs some to learn on"
        )
    images = torch.cat([batch.images for batch in batches]).to(device)
    return images, torch.cat([batch.labels for batch in batches]).to(device)


def patch_gradient(
    subject: Subject, patch: Tensor, images: Tensor, labels: Tensor, side: int, corners: Tensor
) -> Tensor:
    """Of the loss by the pixels of the patch: [C, S, S]"""
    with exact_gradients(patch.device):
        pixels = patch.detach().clone().requires_grad_()
        loss = loss_of(subject, paste(images, resize(pixels, side), corners), labels)
        [gradient] = torch.autograd.grad(loss, pixels)
    return gradient


def paste(images: Tensor, patch: Tensor, corners: Tensor) -> Tensor:
    """[B, C, H, W] of 0..255 with a patch [C, s, s] in each -> float32 [B, C, H, W].

    Args:
        corners: [B, 2] in [0, 1), where the patch is, down and to the right, of the places there
            are: the same numbers put patches of all sizes in about the same place.
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


def side_of(area: float, height: int, width: int) -> int:
    """Pixels of the square that covers about this percentage of the image; 1 at least."""
    return min(max(1, round(math.sqrt(area / 100 * height * width))), height, width)


def resize(patch: Tensor, side: int) -> Tensor:
    """[C, S, S] -> [C, side, side], bilinear, smoothed where it becomes smaller."""
    # As a product, since on a GPU the way back of `interpolate` adds in any order.
    whole = torch.eye(patch.shape[-1], device=patch.device)[None, None]
    weights = F.interpolate(
        whole, (side, patch.shape[-1]), mode="bilinear", align_corners=False, antialias=True
    )[0, 0]  # [side, S]
    return weights @ patch @ weights.T


def in_channels(patch: Tensor, channels: int) -> Tensor:
    """[C, s, s] -> [channels, s, s], grey from colours by the mean, colours from grey as equal."""
    if len(patch) == channels:
        return patch
    return patch.mean(0, keepdim=True).expand(channels, -1, -1)


def paste_at_level(batch: Batch, patch: Tensor, level: float, seed: int) -> Tensor:
    """The batch's images with a patch [C, S, S] that covers `level` percent of each."""
    _, channels, height, width = batch.images.shape
    scaled = resize(in_channels(patch, channels), side_of(level, height, width))
    corners = Draws(seed, "patch place", batch.indices, batch.images.device).uniform(0, 1, 2)
    return paste(batch.images, scaled.to(batch.images.device), corners)


def prepare_patch(subject: Subject, training: Examples, seed: int, progress: Progress) -> Change:
    """The change that pastes the patch which is trained here."""
    patch = train_patch(subject, training, seed, progress, STEPS)

    def change(batch: Batch, level: float, seed: int) -> Tensor:
        return paste_at_level(batch, patch, level, seed)

    return change


def paste_noise(batch: Batch, level: float, seed: int) -> Tensor:
    """A control: pixels at random, the same for all images of a seed."""
    _, channels, height, width = batch.images.shape
    side = side_of(level, height, width)
    own = torch_generator(seed, "patch of noise", side)
    return paste_at_level(batch, 255 * torch.rand(channels, side, side, generator=own), level, seed)


def paste_grey(batch: Batch, level: float, seed: int) -> Tensor:
    """A control: nothing but a part hidden."""
    return paste_at_level(batch, torch.full((1, 1, 1), GREY), level, seed)


PUBLISHED = (
    "The patches of random pixels and of grey are controls: what hiding as large a part does by "
    "itself. Naseer et al. (2021, Sec. 3.4, Fig. 12; 5 patches) give the adversarial one as a "
    "figure only; later work finds ViTs more vulnerable to optimised patches than CNNs are (Gu et "
    "al., arXiv 2111.10659)."
)
PATCHES = (
    Disturbance(
        name="patch-adversarial",
        family="patch",
        title="Adversarial patch",
        x_label="area covered, %",
        levels=AREAS,
        published=PUBLISHED,
        prepare=prepare_patch,
        seeds=True,
        transfers=True,
        usual=False,
    ),
    Disturbance(
        name="patch-noise",
        family="patch",
        title="Patch of random pixels",
        x_label="area covered, %",
        levels=AREAS,
        published=PUBLISHED,
        change=paste_noise,
        seeds=True,
        usual=False,
    ),
    Disturbance(
        name="patch-grey",
        family="patch",
        title="Grey patch",
        x_label="area covered, %",
        levels=AREAS,
        published=PUBLISHED,
        change=paste_grey,
        seeds=True,
        usual=False,
    ),
)
