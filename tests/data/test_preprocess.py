"""Preprocess and the crops: known answers, one pass against two, statistics of the draws."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.loader import EvalTransform
from patchwords.data.preprocess import Preprocess, crop_and_resize, draw_random_resized_crop
from patchwords.errors import ConfigError
from patchwords.rng import numpy_generator


def ramp(width: int, height: int) -> Image.Image:
    """Red is x, green is y: a pixel tells where it was."""
    x = np.broadcast_to(np.linspace(0, 255, width)[None], (height, width))
    y = np.broadcast_to(np.linspace(0, 255, height)[:, None], (height, width))
    return Image.fromarray(np.stack([x, y, 0 * x], axis=-1).round().astype(np.uint8))


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form, quality=95)
    return file.getvalue()


@pytest.mark.parametrize(
    ("size", "image_size", "resized"),
    [
        ((1024, 512), (224, 224), (256, 512)),  # 256 = 224 / 0.875
        ((512, 1024), (224, 224), (512, 256)),
        ((512, 512), (112, 224), (256, 256)),  # covers 128 x 256: the width decides
        ((64, 64), (224, 224), (256, 256)),  # smaller than asked for: enlarged
        ((500, 333), (224, 224), (256, 384)),  # 384.4 in truth
        ((333, 500), (224, 224), (384, 256)),
    ],
)
def test_the_size_before_the_crop(
    size: tuple[int, int], image_size: tuple[int, int], resized: tuple[int, int]
) -> None:
    assert Preprocess(image_size).resized(*size) == resized
    assert Preprocess(image_size, resize="squash").resized(*size) == image_size


def test_a_panorama_is_cut_before_it_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a picture of 30,000 x 2 pixels would be one of 480,000 x 32."""
    preprocess = Preprocess((28, 28))
    image = ramp(700, 50)
    two_steps = preprocess.resize_and_crop(np.array(image)).astype(int)
    monkeypatch.setattr("patchwords.data.preprocess.PANORAMA_AREA_RATIO", 1)
    one_step = preprocess.resize_and_crop(np.array(image)).astype(int)
    assert np.abs(one_step - two_steps).max() <= 1  # Pillow's rounding
    monkeypatch.undo()
    assert preprocess.resize_and_crop(np.array(ramp(30_000, 2))).shape == (28, 28, 3)


def test_squash_shows_the_whole_image_and_crop_its_middle() -> None:
    image = np.array(ramp(300, 100))
    squashed = Preprocess((64, 64), resize="squash").resize_and_crop(image)
    cropped = Preprocess((64, 64), crop_fraction=1.0).resize_and_crop(image)
    assert squashed.shape == cropped.shape == (64, 64, 3)
    assert squashed.dtype == np.uint8
    # columns of the squash run over all of x; those of the crop over its middle third
    assert squashed[0, 0, 0] < 4
    assert squashed[0, -1, 0] > 251
    assert cropped[0, 0, 0] == pytest.approx(255 / 3, abs=3)
    assert cropped[0, -1, 0] == pytest.approx(255 * 2 / 3, abs=3)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("image_size", [(112, 112), (96, 160)])
def test_the_centre_is_that_of_the_image_resized_whole(
    interpolation: str, image_size: tuple[int, int]
) -> None:
    rng = np.random.default_rng(3)
    image = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize((531, 487))
    preprocess = Preprocess(image_size, interpolation=interpolation)  # type: ignore[arg-type]
    ours = preprocess.resize_and_crop(np.array(image))
    height, width = (round(side / 0.875) for side in image_size)
    scale = max(height / image.height, width / image.width)
    resized = image.resize(
        (int(image.width * scale), int(image.height * scale)),
        Image.Resampling[interpolation.upper()],
    )
    left, top = (resized.width - image_size[1]) // 2, (resized.height - image_size[0]) // 2
    box = (left, top, left + image_size[1], top + image_size[0])
    apart = np.abs(ours.astype(int) - np.asarray(resized.crop(box)))
    # Fixed-point sums of 15 and of 22 bits are rounded differently near the middle of two levels.
    assert apart.max() <= 2
    assert (apart > 0).mean() < 0.01
    batch = preprocess(image)  # [1, C, H, W]
    np.testing.assert_array_equal(
        batch, preprocess.normalise(torch.from_numpy(ours.transpose(2, 0, 1)[None]))
    )


def test_evaluation_decodes_whole() -> None:
    data = encoded(ramp(1200, 900), "JPEG")
    preprocess = Preprocess((16, 24))
    assert preprocess.read(data).shape == (900, 1200, 3)
    view = EvalTransform(preprocess)(data, 0, 0, 0)
    image = np.array(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(view, preprocess.resize_and_crop(image))


def test_normalise_is_minus_one_to_one_and_exact() -> None:
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(2, 3, 16, 16)
    out = Preprocess((16, 16)).normalise(images, torch.float64)
    expected = (images.double() / 255 - 0.5) / 0.5
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-15)
    assert (out.min(), out.max()) == (-1, 1)
    uneven = Preprocess((16, 16), mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))
    kept = images.clone()
    got = uneven.normalise(images.to(memory_format=torch.channels_last), torch.float64)
    for channel, (mean, std) in enumerate(zip(uneven.mean, uneven.std, strict=True)):
        want = (images[:, channel].double() / 255 - mean) / std
        torch.testing.assert_close(got[:, channel], want, rtol=0, atol=1e-14)
    assert got.is_contiguous()
    assert uneven.normalise(images, torch.bfloat16).dtype == torch.bfloat16
    floats = images.float()
    uneven.normalise(floats)
    assert torch.equal(images, kept)
    assert torch.equal(floats, kept.float())  # the input is left alone


def test_one_channel() -> None:
    grey = Preprocess((8, 8), channels=1)
    assert grey.mean == (0.5,)
    assert grey(ramp(11, 13)).shape == (1, 1, 8, 8)
    with pytest.raises(ConfigError, match="3 values for 1 channels"):
        Preprocess((8, 8), channels=1, mean=(0.1, 0.2, 0.3))


def test_round_trip_through_json() -> None:
    before = Preprocess((224, 160), "squash", 0.9, "bicubic", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    after = Preprocess.from_dict(json.loads(json.dumps(before.to_dict())))
    assert after == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": [8, 8], "crop_fractoin": 0.9}, "did you mean 'crop_fraction'"),
        ({}, "lacks image_size"),
        ({"image_size": [8, 8], "resize": "sqash"}, "did you mean 'squash'"),
        ({"image_size": [8, 0]}, "whole number from 1 up, not 0"),
        ({"image_size": [8, 8], "crop_fraction": 1.5}, "1.5"),
        ({"image_size": [8, 8], "std": [0.5, 0.0, 0.5]}, "above 0"),
        ({"image_size": [8, 8], "interpolation": "lanczos"}, "bilinear"),
    ],
)
def test_wrong_settings_are_named(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        Preprocess.from_dict(values)
    assert "\n" not in str(error.value)


def test_settings_are_torch_free() -> None:
    code = (
        "import sys, patchwords.data.augment, patchwords.data.preprocess, patchwords.data.sampler;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_drawn_crops_keep_to_area_and_ratio_and_cover_them() -> None:
    areas, ratios, centres = [], [], []
    for sample in range(2000):
        left, top, right, bottom = draw_random_resized_crop(
            401, 307, numpy_generator(0, "test", sample)
        )
        assert 0 <= left < right <= 401
        assert 0 <= top < bottom <= 307
        areas.append((right - left) * (bottom - top) / (401 * 307))
        ratios.append((right - left) / (bottom - top))
        centres.append((left + right) / 2 / 401)
    assert min(areas) >= 0.05 - 1e-9
    assert min(ratios) >= 3 / 4 - 1e-9
    assert max(ratios) <= 4 / 3 + 1e-9
    assert min(areas) < 0.06
    assert max(areas) > 0.9
    # uniform on [0.05, 1] has mean 0.525; large boxes fit less often, so a little below it
    assert 0.42 < np.mean(areas) < 0.54
    # log-ratio: around 0, standard error 0.166 / sqrt(2000) = 0.004; wide images favour wide boxes
    assert abs(np.mean(np.log(ratios))) < 0.04
    assert np.mean(centres) == pytest.approx(0.5, abs=0.015)


def test_crop_that_cannot_fit_is_the_centre() -> None:
    # All of the area at ratio <= 4/3 does not fit into 10:1: the middle 4/3 of it
    box = draw_random_resized_crop(1000, 100, numpy_generator(0), area=(1.0, 1.0))
    assert box == pytest.approx((500 - 200 / 3, 0, 500 + 200 / 3, 100))
    assert draw_random_resized_crop(
        7, 7, numpy_generator(0), (1.0, 1.0), (1.0, 1.0)
    ) == pytest.approx((0, 0, 7, 7))


def test_train_view_is_a_function_of_place() -> None:
    data = encoded(ramp(97, 83))
    view = TrainTransform(Preprocess((32, 48)), AugmentSettings(), seed=5)
    first = view(data, 2, 7)
    assert first.shape == (32, 48, 3)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, view(data, 2, 7))
    for other in ((3, 7), (2, 8), (2, 7, 1)):
        assert (view(data, *other) != first).any()
    assert (TrainTransform(view.preprocess, view.augment, seed=6)(data, 2, 7) != first).any()


def test_flip_comes_half_of_the_time_and_leaves_the_crop_alone() -> None:
    data = encoded(ramp(97, 83))
    preprocess, flipped = Preprocess((16, 16)), 0
    for sample in range(200):
        plain = TrainTransform(preprocess, AugmentSettings(flip=False), seed=0)(data, 0, sample)
        maybe = TrainTransform(preprocess, AugmentSettings(flip=True), seed=0)(data, 0, sample)
        if not np.array_equal(plain, maybe):
            np.testing.assert_array_equal(plain[:, ::-1], maybe)
            flipped += 1
    assert 75 <= flipped <= 125  # binomial(200, 1/2): mean 100, deviation 7


def test_crop_of_a_scaled_decode_is_the_crop_of_the_image() -> None:
    """A JPEG is decoded at a fraction of its size: the crop must still be of the same place."""
    image = ramp(1600, 1200)
    preprocess, augment = Preprocess((64, 64)), AugmentSettings(flip=False)
    for sample in range(5):
        got = TrainTransform(preprocess, augment, seed=1)(encoded(image, "JPEG"), 0, sample)
        box = draw_random_resized_crop(1600, 1200, numpy_generator(1, "augment", 0, sample, 0))
        want = crop_and_resize(np.array(image), box, (64, 64), "bilinear")
        # JPEG at quality 95 and two different filters, on a smooth ramp: a few grey levels
        assert np.abs(got.astype(int) - want).max() <= 6


@pytest.mark.parametrize(
    "settings",
    [
        {"crop_area": (0.0, 1.0)},
        {"crop_area": (0.5, 0.2)},
        {"crop_ratio": (2.0, 1.0)},
        {"randaugment": (2, 40)},
        {"mixup": -0.1},
        {"erase": 1.1},
        {"color_jitter": 2.0},
    ],
)
def test_impossible_augmentation_is_refused_by_name(settings: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        AugmentSettings(**settings)
