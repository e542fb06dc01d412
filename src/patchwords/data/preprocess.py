"""Image preprocessing: resize, crop, normalise; it is stored with the weights.

Evaluation is either "crop" (resize the short side, then centre crop: big_vision, the paper's
experiments) or "squash" (the official repository's: both sides resized, the aspect ratio lost).
They give different accuracies for the same weights, so the choice is part of the model. Pixels
become [-1, 1] by default (mean and std 0.5), as in all official code; not ImageNet's statistics.

Images stay uint8 until `normalise`, which runs on the batch, on the device.
Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from patchwords.errors import ConfigError, DataError, did_you_mean
from patchwords.models.checks import check_number, to_height_width

if TYPE_CHECKING:
    import torch

    from patchwords.data.decode import ImageLike


# Crops. The inception crop is a part of the image, random in area and in aspect ratio.
#
# Defaults are the official ones (vit_jax input_pipeline.py, big_vision ops_image.py): 5-100 % of the
# area, ratio 3/4 to 4/3.
#
# A box is (left, top, right, bottom) in pixels of the image, not always whole ones: so the drawn area
# and ratio hold exactly for an 8x8 digit; in a photo the box is rounded when it is cut out.
#
# Resizing filters with antialiasing (the official TensorFlow code does not).
#
# Sizes: h w of the image, H W of the result.


CropBox = tuple[float, float, float, float]
Interpolation = Literal["bilinear", "bicubic"]

MIN_SNAP_SIDE = 64  # pixels: the side from which on a box may be moved by up to half a pixel
MAX_CROP_ATTEMPTS = 10  # as Inception's own code: then the largest centre crop of an allowed ratio


def draw_random_resized_crop(
    width: float,
    height: float,
    generator: np.random.Generator,
    area: tuple[float, float] = (0.05, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> CropBox:
    """Draw a crop box: its area uniform (a share of the image's), its ratio w/h log-uniform."""
    for _ in range(MAX_CROP_ATTEMPTS):
        pixels = width * height * generator.uniform(*area)
        aspect = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = math.sqrt(pixels * aspect), math.sqrt(pixels / aspect)
        if w <= width and h <= height:
            left, top = generator.random() * (width - w), generator.random() * (height - h)
            return left, top, left + w, top + h
    aspect = min(max(width / height, ratio[0]), ratio[1])
    return centre_crop_box(width, height, min(width, height * aspect), min(height, width / aspect))


def draw_random_crop(
    width: float,
    height: float,
    covering: tuple[int, int],
    size: tuple[int, int],
    generator: np.random.Generator,
) -> CropBox:
    """Draw the box that has `size` (H, W) once the image is resized to `covering` (H, W).

    It lies anywhere: "resize, then a random crop", as BiT (input_pipeline_tf2_or_jax.py) and
    big_vision (`random_crop` in ops_image.py) do.
    """
    w, h = width * size[1] / covering[1], height * size[0] / covering[0]
    left, top = generator.random() * (width - w), generator.random() * (height - h)
    return left, top, left + w, top + h


def centre_crop_box(width: float, height: float, w: float, h: float) -> CropBox:
    """Return the centred box of w x h in an image of width x height."""
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def crop_and_resize(
    pixels: np.ndarray, box: CropBox, size: tuple[int, int], interpolation: Interpolation
) -> np.ndarray:
    """Cut a box out of uint8 [h, w, 3] and resize it to uint8 [H, W, 3].

    A box of some size is moved to the nearest whole pixels; a small one is taken as it is.
    """
    left, top, right, bottom = (round(side) for side in box)
    if min(right - left, bottom - top) < MIN_SNAP_SIDE and box != (left, top, right, bottom):
        return _crop_between_pixels(pixels, box, size, interpolation)
    return resize_image(np.ascontiguousarray(pixels[top:bottom, left:right]), size, interpolation)


def resize_image(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Interpolation
) -> np.ndarray:
    """Resize uint8 [h, w, 3] to uint8 [H, W, 3], with antialiasing.

    By torch, which has Pillow's filters in SIMD code: four times as fast, and a level away in one
    pixel of a few hundred. From version 13 on Pillow begins with the rows where that is less work,
    torch never: a level in one pixel of four then, and in sharp edges more by bicubic.
    """
    import torch
    from torch.nn.functional import interpolate

    images = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # [1, 3, h, w], channels last
    resized = interpolate(images, size, mode=interpolation, antialias=True)  # [1, 3, H, W]
    return resized[0].permute(1, 2, 0).numpy()  # [H, W, 3]


def flip_horizontally(pixels: np.ndarray) -> np.ndarray:
    """Mirror uint8 [H, W, 3] left to right; with NumPy it would take as long as resizing."""
    import torch

    return torch.from_numpy(pixels).flip(1).numpy()


def _crop_between_pixels(
    pixels: np.ndarray, box: CropBox, size: tuple[int, int], interpolation: Interpolation
) -> np.ndarray:
    from PIL import Image

    left, top, right, bottom = box
    height, width = pixels.shape[:2]
    # Rounding may have put the box a hair outside, which Pillow refuses.
    inside = max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
    resample = Image.Resampling[interpolation.upper()]
    return np.array(Image.fromarray(pixels).resize(size[::-1], resample, box=inside))


ResizeMode = Literal["crop", "squash"]
CropRule = Literal["floor", "timm"]
MAX_STATISTIC, MIN_STD = 1e6, 1e-6  # of pixels in [0, 1]; rescaled ones may have 255 times that
PANORAMA_AREA_RATIO = 16  # resized pixels per pixel of the model: more than any photo has


@dataclass(frozen=True)
class Preprocess:
    """Settings and methods that turn images into what the model takes."""

    image_size: tuple[int, int]  # H, W
    resize: ResizeMode = "crop"
    crop_fraction: float = 0.875  # of the resized image that the centre crop keeps: 224 / 256
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # of each channel, of pixels in [0, 1]
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    channels: Literal[3, 1] = 3  # 1 = grey
    crop_rule: CropRule = "floor"  # how sizes and the centre crop's corner become whole pixels

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", to_height_width(self.image_size))
        if self.resize not in get_args(ResizeMode):
            hint = did_you_mean(str(self.resize), get_args(ResizeMode))
            raise ConfigError(f"resize is {self.resize!r}{hint}")
        if self.crop_rule not in get_args(CropRule):
            hint = did_you_mean(str(self.crop_rule), get_args(CropRule))
            raise ConfigError(f"crop_rule is {self.crop_rule!r}{hint}")
        if self.interpolation not in get_args(Interpolation):
            hint = did_you_mean(str(self.interpolation), get_args(Interpolation))
            raise ConfigError(f"interpolation is {self.interpolation!r}{hint}")
        if not 0 < check_number("crop_fraction", self.crop_fraction) <= 1:
            raise ConfigError(f"crop_fraction is {self.crop_fraction}; it must be in (0, 1]")
        if self.channels not in (1, 3):
            raise ConfigError(f"channels is {self.channels}; images have 3 (RGB) or 1 (grey)")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if not isinstance(values, tuple):
                raise ConfigError(f"{name} is {values!r}; give a number for each channel")
            for value in values:
                if not abs(check_number(name, value)) <= MAX_STATISTIC:
                    raise ConfigError(
                        f"{name} is {values}, which no pixels have: the file is damaged"
                    )
            if self.channels == 1 and len(set(values)) == 1:  # (.5, .5, .5) serves grey as well
                values = values[:1]
                object.__setattr__(self, name, values)
            if len(values) != self.channels:
                raise ConfigError(
                    f"{name} has {len(values)} values for {self.channels} channels; give one each"
                )
        if min(self.std) < MIN_STD:
            raise ConfigError(f"std is {self.std}; every value must be above 0")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain lists and numbers, for JSON.

        `crop_rule` is left out where it is "floor", the only rule of 0.1.
        """
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        if self.crop_rule == "floor":
            del values["crop_rule"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise ConfigError(
                    f"unknown preprocessing setting {key!r}{did_you_mean(key, known)}"
                )
        if "image_size" not in values:
            raise ConfigError("preprocessing lacks image_size; give [height, width]")
        settings: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**settings)

    @property
    def covered(self) -> tuple[int, int]:
        """H, W that the resized image must cover before the centre crop."""
        height, width = self.image_size
        rows, columns = height / self.crop_fraction, width / self.crop_fraction
        if self.crop_rule == "timm":
            return math.floor(rows), math.floor(columns)
        return round(rows), round(columns)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return the (H, W) of the resized image, before the centre crop.

        One side as `covered` says, the other in proportion and rounded down, as in torchvision;
        timm rounds it to the nearest where the two sides of `covered` differ (ResizeKeepRatio).
        """
        if self.resize == "squash":
            return self.image_size
        rows, columns = self.covered
        if self.crop_rule == "timm" and rows != columns:
            ratio = min(height / rows, width / columns)
            return round(height / ratio), round(width / ratio)
        if rows * width >= columns * height:  # the height decides
            return rows, rows * width // height
        return columns * height // width, columns

    def __call__(self, images: ImageLike | Sequence[ImageLike]) -> torch.Tensor:
        """Turn an image, or a list of them, into what the model takes, float32 [B, C, H, W].

        An image is a path, encoded bytes, a PIL image, or a uint8 array [h, w, 3]. Raises DataError
        for one that cannot be read.
        """
        import torch

        several: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
        pixels = np.stack([self.resize_and_crop(self.read(image)) for image in several])
        return self.normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2))

    def read(self, image: ImageLike) -> np.ndarray:
        """Read an image in any form as uint8 [h, w, 3], whole.

        A JPEG decoded at a half or a quarter would score differently from the same image in memory.
        """
        from patchwords.data.decode import read_pixels

        try:
            return read_pixels(image)
        except DataError as error:
            name = f"{image}: " if isinstance(image, str | Path) else ""
            raise DataError(f"{name}{error}") from error

    def resize_and_crop(self, pixels: np.ndarray) -> np.ndarray:
        """Bring RGB pixels to the model's size as evaluation does, uint8 [h, w, 3] -> [H, W, C]."""
        (height, width), (h, w) = self.image_size, pixels.shape[:2]
        rows, columns = self.resized(w, h)
        top, left = self.crop_corner(rows, columns)
        # The resized image of a panorama could fill the memory.
        if rows * columns > PANORAMA_AREA_RATIO * height * width:
            across, down = w / columns, h / rows
            box = left * across, top * down, (left + width) * across, (top + height) * down
            return self.in_channels(
                crop_and_resize(pixels, box, self.image_size, self.interpolation)
            )
        # In two steps, as other programs do: a box between pixels would give other scores.
        whole = resize_image(pixels, (rows, columns), self.interpolation)
        return self.in_channels(whole[top : top + height, left : left + width])

    def crop_corner(self, rows: int, columns: int) -> tuple[int, int]:
        """Return (top, left) of the centre crop of an image of rows x columns.

        It is rounded down in big_vision's ops_image.py and in transformers; torchvision, which timm
        uses, rounds a half to the even number.
        """
        down, across = rows - self.image_size[0], columns - self.image_size[1]
        if self.crop_rule == "timm":
            return round(down / 2), round(across / 2)
        return down // 2, across // 2

    def in_channels(self, pixels: np.ndarray) -> np.ndarray:
        """Convert uint8 [H, W, 3] to uint8 [H, W, C]: grey for a model of grey images."""
        if self.channels == 3:
            return pixels
        from PIL import Image

        return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]

    def normalise(self, images: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Scale [B, C, H, W] of 0..255 to float: (x / 255 - mean) / std, contiguous."""
        import torch

        dtype = dtype or torch.float32
        work = torch.promote_types(dtype, torch.float32)  # bf16 only at the end: 8 bits are few
        x = images.to(work, memory_format=torch.contiguous_format) / 255
        mean, std = (
            values[0]
            if len(set(values)) == 1  # a plain number saves a copy to the device
            else torch.tensor(values, dtype=work, device=x.device)[:, None, None]  # [C, 1, 1]
            for values in (self.mean, self.std)
        )
        return x.sub_(mean).div_(std).to(dtype)
