"""Photos and masks that are scaled, cropped and mirrored together.

The draw of a sample is a function of its place, so that the transform of the photo and that of the
mask, each given its own file, make the same cut. A scale of 1 is that of evaluation, at which the
photo covers the model's image size.

Sizes: h w photo, H W crop, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.decode import EncodedImage
from patchwords.data.preprocess import Preprocess, flip_horizontally, resize_image
from patchwords.data.sampler import SampleKey
from patchwords.data.sources.mask_table import IGNORE, MaskTable
from patchwords.rng import numpy_generator

SQUASHED = 1.1  # most that a side is squashed to fit the window


@dataclass(frozen=True)
class Span:
    """One side of a cut: which pixels of the photo become which of the crop."""

    start: int  # in the photo
    stop: int
    size: int  # in the crop, after scaling
    offset: int  # of its first pixel in the crop

    @property
    def place(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class SceneCut:
    """A random cut of a photo, the same for its mask."""

    rows: Span
    columns: Span
    flip: bool


def draw_cut(
    size: tuple[int, int],
    preprocess: Preprocess,
    augment: AugmentSettings,
    generator: np.random.Generator,
) -> SceneCut:
    """Draw scale, place and mirroring of a photo of (h, w)."""
    height, width = size
    base = cover_window(width, height, preprocess)  # (rows, columns) at scale 1
    scale = generator.uniform(*augment.scale_range)
    spans = []
    for side, resized, crop in zip(size, base, preprocess.image_size, strict=True):
        spans.append(draw_span(side, scale * resized / side, crop, generator.random()))
    flip = augment.flip and bool(generator.random() < 0.5)
    rows, columns = spans
    return SceneCut(rows, columns, flip)


def cover_window(width: int, height: int, preprocess: Preprocess) -> tuple[int, int]:
    """Return the (rows, columns) at which a photo covers the model's image size.

    A side that would be a little longer is squashed, or a photo would take a second window for it.
    """
    resized = preprocess.resized(width, height)
    rows, columns = (
        window if side <= SQUASHED * window else side
        for side, window in zip(resized, preprocess.image_size, strict=True)
    )
    return rows, columns


def draw_span(side: int, scale: float, crop: int, draw: float) -> Span:
    """Place a crop on one side of a scaled photo, or a small photo in the crop."""
    seen = crop / scale  # pixels of the photo that fill the crop
    if seen >= side:
        size = min(crop, max(1, round(side * scale)))
        return Span(0, side, size, round(draw * (crop - size)))
    length = max(1, round(seen))
    start = round(draw * (side - length))
    return Span(start, start + length, crop, 0)


def cut_image(
    pixels: np.ndarray, cut: SceneCut, preprocess: Preprocess, fill: np.ndarray
) -> np.ndarray:
    """Cut uint8 [h, w, 3] to [H, W, 3]; what lies outside of the photo has the colour `fill`."""
    rows, columns = cut.rows, cut.columns
    part = np.ascontiguousarray(pixels[rows.start : rows.stop, columns.start : columns.stop])
    part = resize_image(part, (rows.size, columns.size), preprocess.interpolation)
    canvas = np.broadcast_to(fill, (*preprocess.image_size, 3)).copy()
    canvas[rows.place, columns.place] = part
    return flip_horizontally(canvas) if cut.flip else canvas


def cut_mask(mask: np.ndarray, cut: SceneCut, size: tuple[int, int]) -> np.ndarray:
    """Cut class indices, uint8 [h, w], to [H, W] by the nearest pixel; outside there is no label."""
    rows, columns = (nearest_pixels(span) for span in (cut.rows, cut.columns))
    canvas = np.full(size, IGNORE, np.uint8)
    canvas[cut.rows.place, cut.columns.place] = mask[rows][:, columns]
    return np.ascontiguousarray(canvas[:, ::-1]) if cut.flip else canvas


def nearest_pixels(span: Span) -> np.ndarray:
    """Return which pixel of the photo each pixel of the crop shows, [size]."""
    step = (span.stop - span.start) / span.size
    return span.start + ((np.arange(span.size) + 0.5) * step).astype(np.int64)


def mean_colour(preprocess: Preprocess) -> np.ndarray:
    """Return the colour that normalisation makes zero, uint8 [3]."""
    grey = np.array(preprocess.mean) * 255
    return np.clip(np.rint(np.broadcast_to(grey, 3)), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class SceneTransform(TrainTransform):
    """Encoded photo -> uint8 [H, W, C] of a random cut."""

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int = 0) -> np.ndarray:
        pixels = EncodedImage(data).pixels()  # [h, w, 3]
        cut = draw_cut(
            (pixels.shape[0], pixels.shape[1]),
            self.preprocess,
            self.augment,
            place_generator(self, epoch, sample, repeat),
        )
        filled = cut_image(pixels, cut, self.preprocess, mean_colour(self.preprocess))
        return self.preprocess.in_channels(filled)


@dataclass(frozen=True)
class MaskTransform:
    """Encoded mask -> uint8 [H, W] class indices of the cut that its photo has."""

    photo: SceneTransform
    table: MaskTable
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.photo.preprocess.image_size

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int = 0) -> np.ndarray:
        mask = self.table.decode(data)  # [h, w]
        cut = draw_cut(
            (mask.shape[0], mask.shape[1]),
            self.photo.preprocess,
            self.photo.augment,
            place_generator(self.photo, epoch, sample, repeat),
        )
        return cut_mask(mask, cut, self.photo.preprocess.image_size)


def place_generator(
    transform: TrainTransform, epoch: int, sample: int, repeat: int
) -> np.random.Generator:
    """Return the generator of a sample's place, which photo and mask share."""
    place = transform.augment.drawn_at(SampleKey(epoch, sample, repeat))
    return numpy_generator(transform.seed, "scene" + transform.view, *place)
