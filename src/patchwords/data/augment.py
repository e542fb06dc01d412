"""Augmentation of training images: what is done, and the half of it that the workers do.

Workers decode, crop, resize and flip (`TrainTransform`, here); colour work, erasing and mixing run on
the batch on the device (`batch_augment.augment_batch`). Every draw is a function of place: of
(seed, epoch, sample), never of the worker, the batch, or what was drawn before; with a fixed
number of views, of (seed, view, sample).

Sizes: C channels, H W image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from patchwords.data.decode import EncodedImage
from patchwords.data.preprocess import (
    CropBox,
    Preprocess,
    crop_and_resize,
    draw_random_crop,
    draw_random_resized_crop,
    flip_horizontally,
)
from patchwords.data.sampler import SampleKey
from patchwords.errors import ConfigError
from patchwords.rng import numpy_generator


@dataclass(frozen=True)
class AugmentSettings:
    """Augmentation of training images; the defaults are the paper's: inception crop and flip."""

    section: ClassVar[str] = "Augmentation"

    crop_area: tuple[float, float] = (0.05, 1.0)
    """smallest and largest share of the image that the random crop keeps"""
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    """smallest and largest width / height of the random crop; default: 3/4 to 4/3"""
    random_crop: float | None = None
    """random crop of fixed size instead: this share of each side, such as 0.875; default: off"""
    scale_range: tuple[float, float] = (0.5, 2.0)
    """smallest and largest random scale of photo and mask, in segmentation; at 1 the photo covers
    the image size"""
    flip: bool = True
    """mirror each training image left to right with probability 1/2"""
    randaugment: tuple[int, float] | None = None
    """RandAugment: number of operations and magnitude (0 to 30); 2 15 is AugReg's medium; default:
    off"""
    mixup: float = 0.0
    """Mixup: p of Beta(p, p); 0: off"""
    cutmix: float = 0.0
    """CutMix: p of Beta(p, p); 0: off; with --mixup, each batch gets one of the two"""
    color_jitter: float = 0.0
    """change brightness, contrast and saturation each by up to this share"""
    erase: float = 0.0
    """probability that a random rectangle of an image is replaced by noise"""
    views: int | None = None
    """number of fixed augmentations per image; default: new ones every epoch"""

    def __post_init__(self) -> None:
        low, high = self.crop_area
        if not 0 < low <= high <= 1:
            raise ConfigError(f"crop_area is {self.crop_area}; give 0 < smallest <= largest <= 1")
        low, high = self.crop_ratio
        if not 0 < low <= high:
            raise ConfigError(f"crop_ratio is {self.crop_ratio}; give 0 < narrowest <= widest")
        low, high = self.scale_range
        if not 0 < low <= high:
            raise ConfigError(f"scale_range is {self.scale_range}; give 0 < smallest <= largest")
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
    view: str = ""  # views of different names are drawn independently
    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.preprocess.image_size, self.preprocess.channels)

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int = 0) -> np.ndarray:
        place = self.augment.drawn_at(SampleKey(epoch, sample, repeat))
        generator = numpy_generator(self.seed, "augment" + self.view, *place)
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
        larger = replace(preprocess, crop_fraction=augment.random_crop, crop_rule="floor")
        squashed = preprocess.resize == "squash"
        covering = larger.covered if squashed else larger.resized(width, height)
        return draw_random_crop(width, height, covering, preprocess.image_size, generator)

    def _smallest(self, width: int, height: int, crop: tuple[float, float]) -> int:
        """Shortest side of the decoded image at which the crop still has the pixels asked for."""
        target_height, target_width = self.preprocess.image_size
        scale = max(target_width / crop[0], target_height / crop[1])
        return math.ceil(min(width, height) * scale)
