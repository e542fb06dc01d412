"""A random crop of fixed size: where it lies, and that it is what resizing and cutting gives."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.preprocess import Preprocess, draw_random_crop
from patchwords.errors import ConfigError
from patchwords.rng import numpy_generator

WIDTH, HEIGHT = 61, 47


def test_the_window_lies_anywhere_inside() -> None:
    boxes = np.array(
        [
            draw_random_crop(WIDTH, HEIGHT, (35, 45), (28, 28), numpy_generator(seed))
            for seed in range(2000)
        ]
    )
    left, top, right, bottom = boxes.T
    np.testing.assert_allclose(right - left, WIDTH * 28 / 45)
    np.testing.assert_allclose(bottom - top, HEIGHT * 28 / 35)
    across, down = left / (WIDTH - WIDTH * 28 / 45), top / (HEIGHT - HEIGHT * 28 / 35)
    for place in (across, down):  # uniform from edge to edge: mean 1/2 +- 4 standard errors
        assert 0 <= place.min() < 0.01
        assert 0.99 < place.max() <= 1
        assert abs(place.mean() - 0.5) < 4 / np.sqrt(12 * 2000)
    assert abs(np.corrcoef(across, down)[0, 1]) < 4 / np.sqrt(2000)


def ramp() -> bytes:
    """A lossless image whose red tells the column and whose green the row, 4 levels a pixel."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    pixels = np.stack([4 * x, 4 * y, 0 * x], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_training_sees_a_window_of_the_resized_image(resize: str) -> None:
    preprocess = Preprocess(image_size=(28, 20), resize=resize)  # type: ignore[arg-type]
    view = TrainTransform(preprocess, AugmentSettings(random_crop=0.8, flip=False), seed=5)
    if resize == "squash":
        wide, high = 0.8 * WIDTH, 0.8 * HEIGHT
    else:  # 35 rows cover; 45 columns belong to them
        wide, high = WIDTH * 20 / 45, HEIGHT * 28 / 35
    lefts = set()
    for sample in range(20):
        pixels = view(ramp(), 0, sample).astype(float) / 4
        assert pixels.shape == (28, 20, 3)
        # The steps between pixels inside, away from the antialiased edges, are those of the window.
        across, down = pixels[14, 2:-2, 0], pixels[3:-3, 10, 1]
        assert (across[-1] - across[0]) / 15 == pytest.approx(wide / 20, rel=0.03)
        assert (down[-1] - down[0]) / 21 == pytest.approx(high / 28, rel=0.03)
        lefts.add(across[0])
    assert len(lefts) > 10
    assert (view(ramp(), 1, 3) == view(ramp(), 1, 3)).all()


def test_the_whole_short_side() -> None:
    square = Image.fromarray(np.arange(75, dtype=np.uint8).reshape(5, 5, 3))
    file = io.BytesIO()
    square.save(file, "PNG")
    preprocess = Preprocess(image_size=(5, 5), crop_fraction=1.0)
    view = TrainTransform(preprocess, AugmentSettings(random_crop=1.0, flip=False), seed=0)
    assert (view(file.getvalue(), 0, 0) == np.asarray(square)).all()


@pytest.mark.parametrize("share", [0.0, -0.5, 1.1, float("nan")])
def test_shares_that_are_none(share: float) -> None:
    with pytest.raises(ConfigError, match=r"random_crop is .*; it must be in"):
        AugmentSettings(random_crop=share)
