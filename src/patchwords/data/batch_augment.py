"""Augmentation of a whole batch, on whatever device it is.

In: uint8 images. Out: uint8 images, and labels that are soft where images were mixed. uint8 to the
end keeps the batch small until it is cut into micro-batches; `Preprocess.normalise` comes last, on
each. (Mixing rounds to whole grey levels, half a level at most: the decoder did so before.)

What an image goes through is a function of (seed, place) and so the same in any batch; mixing
alone looks at the neighbour, and draws once per batch from (seed, step). Call this on the whole
batch, before it is cut: then the size of the micro-batch changes nothing.

Sizes: B batch, C channels, H W image, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from patchwords.data.augment import AugmentSettings
from patchwords.data.preprocess import draw_random_resized_crop
from patchwords.data.randaugment import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    randaugment,
)
from patchwords.data.sampler import SampleKey
from patchwords.rng import numpy_generator

ERASED_AREA = (0.02, 0.4)  # share of the image: Zhong et al. 2020, Random Erasing
ERASED_RATIO = (0.3, 1 / 0.3)


def augment_images(
    images: torch.Tensor,
    places: Sequence[SampleKey],
    augment: AugmentSettings,
    seed: int,
    view: str = "",
) -> torch.Tensor:
    """What each image goes through by itself: uint8 [B, C, H, W] -> the same."""
    if augment.randaugment or augment.color_jitter or augment.erase:
        drawn = [augment.drawn_at(place) for place in places]
        generators = [numpy_generator(seed, "augment-device" + view, *place) for place in drawn]
        if augment.randaugment:
            images = randaugment(images, generators, *augment.randaugment)
        if augment.color_jitter:
            images = jitter_colors(images, generators, augment.color_jitter)
        if augment.erase:
            images = random_erasing(images, generators, augment.erase)
    return images


def mix_images(
    images: torch.Tensor,
    labels: torch.Tensor,
    augment: AugmentSettings,
    seed: int,
    num_classes: int,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """MixUp or CutMix: uint8 [B, C, H, W], int64 [B] -> the same; labels float [B, K] where mixed."""
    if not augment.mixes:
        return images, labels
    generator = numpy_generator(seed, "mixup", step)
    if augment.mixup and (not augment.cutmix or generator.random() < 0.5):
        return mixup(images, labels, generator, augment.mixup, num_classes)
    return cutmix(images, labels, generator, augment.cutmix, num_classes)


def augment_batch(
    images: torch.Tensor,
    labels: torch.Tensor,
    places: Sequence[SampleKey],
    augment: AugmentSettings,
    seed: int,
    num_classes: int,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All of it, for a batch of one view and class labels."""
    images = augment_images(images, places, augment, seed)
    return mix_images(images, labels, augment, seed, num_classes, step)


def jitter_colors(
    images: torch.Tensor, generators: Sequence[np.random.Generator], strength: float
) -> torch.Tensor:
    """Brightness, contrast, saturation, in this order, each by a factor 1 - s .. 1 + s."""
    draws = np.array([generator.random(3) for generator in generators]).reshape(-1, 3)
    factors = torch.from_numpy(1 + strength * (2 * draws - 1)).to(images.device)  # [B, 3]
    for number, operation in enumerate((adjust_brightness, adjust_contrast, adjust_saturation)):
        images = operation(images, factors[:, number])
    return images


def random_erasing(
    images: torch.Tensor, generators: Sequence[np.random.Generator], probability: float
) -> torch.Tensor:
    """A rectangle of an image, with this probability, becomes random pixels."""
    images = images.clone()
    channels, height, width = images.shape[1:]
    for row, generator in enumerate(generators):
        if generator.random() >= probability:
            continue
        box = draw_random_resized_crop(width, height, generator, ERASED_AREA, ERASED_RATIO)
        left, top, right, bottom = (round(side) for side in box)
        # Made on the CPU: the same on every device.
        pixels = generator.integers(
            256, size=(channels, bottom - top, right - left), dtype=np.uint8
        )
        images[row, :, top:bottom, left:right] = torch.from_numpy(pixels).to(images.device)
    return images


def mix_labels(labels: torch.Tensor, share: float, num_classes: int) -> torch.Tensor:
    """int64 [B] -> float [B, K]: a share of each label, the rest of the neighbour's."""
    rows = functional.one_hot(labels, num_classes).to(torch.float32)
    return share * rows + (1 - share) * rows.roll(1, 0)


def mixup(
    images: torch.Tensor,
    labels: torch.Tensor,
    generator: np.random.Generator,
    p: float,
    num_classes: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """a x_i + (1 - a) x_(i-1), a = max(b, 1 - b), b ~ Beta(p, p): as big_vision's `get_mixup`."""
    share = generator.beta(p, p)
    share = max(share, 1 - share)
    mixed = torch.lerp(images.roll(1, 0).to(torch.float32), images.to(torch.float32), share)
    return mixed.round_().to(torch.uint8), mix_labels(labels, share, num_classes)


def cutmix(
    images: torch.Tensor,
    labels: torch.Tensor,
    generator: np.random.Generator,
    p: float,
    num_classes: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A rectangle of the neighbour is pasted in; labels go by area (Yun et al. 2019)."""
    height, width = images.shape[-2:]
    side = math.sqrt(1 - generator.beta(p, p))  # of the rectangle, as a share of the image's
    x, y = generator.random() * width, generator.random() * height
    half_width, half_height = side * width / 2, side * height / 2
    left, right = max(0, round(x - half_width)), min(width, round(x + half_width))
    top, bottom = max(0, round(y - half_height)), min(height, round(y + half_height))
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return mixed, mix_labels(labels, share, num_classes)
