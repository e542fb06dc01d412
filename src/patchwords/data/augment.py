"""Augmentation of training images: what is done, and the half of it that the workers do.

Workers decode, crop, resize and flip (`TrainTransform`, here); colour work, erasing and mixing run on
the batch on the device (`batch_augment.augment_batch`). Every draw is a function of place: of
(seed, epoch, sample), never of the worker, the batch, or what was drawn before; with a fixed
number of views, of (seed, view, sample).

Sizes: C channels, H W image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from patchwords.data.decode import EncodedImage
from patchwords.data.preprocess import (
    CropBox,
    Preprocess,
    crop_and_resize,
    draw_random_crop,
    draw_random_resized_crop,
    flip_horizontally,
)
from patchwords.data.randaugment import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    randaugment,
)
from patchwords.data.sampler import SampleKey
from patchwords.errors import ConfigError
from patchwords.rng import numpy_generator


@dataclass(frozen=True)
class AugmentSettings:
    """What training images go through; the defaults are the paper's: inception crop and flip."""

    crop_area: tuple[float, float] = (0.05, 1.0)  # share of the image that the crop keeps
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)  # width / height of the crop
    random_crop: float | None = None  # instead: a crop of this share of the sides, as 0.875
    flip: bool = True  # left to right, for half of the images
    randaugment: tuple[int, float] | None = None  # layers, magnitude: (2, 15) is AugReg's medium
    mixup: float = 0.0  # p of Beta(p, p); 0 = off
    cutmix: float = 0.0  # likewise; with both on, each batch has one of them
    color_jitter: float = 0.0  # brightness, contrast and saturation each by up to this share
    erase: float = 0.0  # probability that a random rectangle becomes noise
    views: int | None = None  # ways in which an image is seen, in turn; none given: ever new ones

    def __post_init__(self) -> None:
        low, high = self.crop_area
        if not 0 < low <= high <= 1:
            raise ConfigError(f"crop_area is {self.crop_area}; give 0 < smallest <= largest <= 1")
        low, high = self.crop_ratio
        if not 0 < low <= high:
            raise ConfigError(f"crop_ratio is {self.crop_ratio}; give 0 < narrowest <= widest")
        if self.random_crop is not None and not 0 < self.random_crop <= 1:
            raise ConfigError(f"random_crop is {self.random_crop}; it must be in (0, 1]")
        if self.randaugment is not None:
            layers, magnitude = self.randaugment
            if layers < 0 or not 0 <= magnitude <= 30:
                raise ConfigError(
                    f"randaugment is {self.randaugment}; give layers >= 0, magnitude 0 to 30"
                )
        for name in ("mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 (off) or above")
        for name in ("color_jitter", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be in [0, 1]")
        if self.views is not None and self.views < 1:
            raise ConfigError(f"views is {self.views}; give 1 or more, or leave it out")

    @property
    def mixes(self) -> bool:
        """Whether images are blended with others of their batch, which are others every time."""
        return self.mixup > 0 or self.cutmix > 0

    def is_fixed(self, preprocess: Preprocess) -> bool:
        """Whether nothing is drawn for an image by itself: it is the same in every epoch."""
        operations = self.randaugment is not None and self.randaugment[0] > 0
        drawn = self.flip or operations or self.color_jitter > 0 or self.erase > 0
        return not drawn and self.random_crop == 1 and preprocess.resize == "squash"

    def drawn_at(self, place: SampleKey) -> SampleKey:
        """The place of an image's draws: with a fixed number of views, by turns that of each."""
        if self.views is None:
            return place
        return SampleKey((place.epoch + place.repeat) % self.views, place.sample)


@dataclass(frozen=True)
class TrainTransform:
    """Encoded bytes -> uint8 [H, W, C]: decoded, cropped at random, resized, perhaps flipped."""

    preprocess: Preprocess
    augment: AugmentSettings
    seed: int

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int = 0) -> np.ndarray:
        place = self.augment.drawn_at(SampleKey(epoch, sample, repeat))
        generator = numpy_generator(self.seed, "augment", *place)
        encoded = EncodedImage(data)
        width, height = encoded.size
        box = self._box(width, height, generator)
        flip = self.augment.flip and generator.random() < 0.5
        seen = box[2] - box[0], box[3] - box[1]
        image = encoded.pixels(self._smallest(width, height, seen))  # [h, w, 3]
        # The decoder may have given a smaller image: the same part of it.
        x, y = image.shape[1] / width, image.shape[0] / height
        scaled = (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
        pixels = crop_and_resize(
            image, scaled, self.preprocess.image_size, self.preprocess.interpolation
        )
        return self.preprocess.in_channels(flip_horizontally(pixels) if flip else pixels)

    def _box(self, width: int, height: int, generator: np.random.Generator) -> CropBox:
        """The part of the image that is seen: an inception crop, or one of fixed size."""
        augment, preprocess = self.augment, self.preprocess
        if augment.random_crop is None:
            return draw_random_resized_crop(
                width, height, generator, augment.crop_area, augment.crop_ratio
            )
        larger = replace(preprocess, crop_fraction=augment.random_crop)
        squashed = preprocess.resize == "squash"
        covering = larger.covered if squashed else larger.resized(width, height)
        return draw_random_crop(width, height, covering, preprocess.image_size, generator)

    def _smallest(self, width: int, height: int, crop: tuple[float, float]) -> int:
        """Shortest side of the decoded image at which the crop still has the pixels asked for."""
        target_height, target_width = self.preprocess.image_size
        scale = max(target_width / crop[0], target_height / crop[1])
        return math.ceil(min(width, height) * scale)


# Augmentation of a whole batch, on whatever device it is.
#
# In: uint8 images. Out: uint8 images, and labels that are soft where images were mixed. uint8 to the
# end keeps the batch small until it is cut into micro-batches; `Preprocess.normalise` comes last, on
# each. (Mixing rounds to whole grey levels, half a level at most: the decoder did so before.)
#
# What an image goes through is a function of (seed, place) and so the same in any batch; mixing
# alone looks at the neighbour, and draws once per batch from (seed, step). Call this on the whole
# batch, before it is cut: then the size of the micro-batch changes nothing.
#
# Sizes: B batch, C channels, H W image, K classes.


ERASED_AREA = (0.02, 0.4)  # share of the image: Zhong et al. 2020, Random Erasing
ERASED_RATIO = (0.3, 1 / 0.3)


def augment_batch(
    images: torch.Tensor,
    labels: torch.Tensor,
    places: Sequence[SampleKey],
    augment: AugmentSettings,
    seed: int,
    num_classes: int,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 [B, C, H, W], int64 [B] -> the same; labels float [B, K] where images are mixed."""
    if augment.randaugment or augment.color_jitter or augment.erase:
        drawn = [augment.drawn_at(place) for place in places]
        generators = [numpy_generator(seed, "augment-device", *place) for place in drawn]
        if augment.randaugment:
            images = randaugment(images, generators, *augment.randaugment)
        if augment.color_jitter:
            images = jitter_colors(images, generators, augment.color_jitter)
        if augment.erase:
            images = random_erasing(images, generators, augment.erase)
    if augment.mixup or augment.cutmix:
        generator = numpy_generator(seed, "mixup", step)
        if augment.mixup and (not augment.cutmix or generator.random() < 0.5):
            return mixup(images, labels, generator, augment.mixup, num_classes)
        return cutmix(images, labels, generator, augment.cutmix, num_classes)
    return images, labels


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
