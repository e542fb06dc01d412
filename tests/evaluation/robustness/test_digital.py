"""Digital corruptions against SciPy, colorsys and Pillow."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from patchwords.evaluation.robustness.corruption_ops import (
    elastic_transform,
    jpeg_compression,
    pixelate,
    reduce_contrast,
    shift_brightness,
    solve_inverse_affine,
)
from patchwords.evaluation.robustness.perturbation import PerImageRandom

EXACT = {"rtol": 0, "atol": 1e-12}  # float64, sums of a few hundred products


def images(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).random(shape))


def draws(*indices: int, seed: int = 0) -> PerImageRandom:
    return PerImageRandom(seed, "elastic", indices or (3, 5))


def test_brightness_adds_to_the_value_of_hsv() -> None:
    pixels = images(2, 3, 5, 7)
    pixels[0, :, 0, 0] = 0  # black
    pixels[0, :, 0, 1] = 1  # white
    found = shift_brightness(pixels, draws(), 0.3)
    for b, y, x in np.ndindex(2, 5, 7):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixels[b, :, y, x].tolist())
        wanted = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.3, 1))
        np.testing.assert_allclose(found[b, :, y, x], wanted, **EXACT)


def test_contrast_draws_each_channel_of_each_image_to_its_mean() -> None:
    pixels = images(2, 3, 5, 7)
    means = pixels.numpy().mean((2, 3), keepdims=True)
    found = reduce_contrast(pixels, draws(), 0.4)
    np.testing.assert_allclose(found, means + 0.4 * (pixels.numpy() - means), **EXACT)
    np.testing.assert_allclose(found.mean((2, 3)), pixels.mean((2, 3)), **EXACT)


def test_three_corners_go_where_they_were_moved() -> None:
    moves = torch.from_numpy(np.random.default_rng(1).uniform(-4, 4, (2, 3, 2)))
    corners = np.array([[19 + 11, 17 + 11], [19 + 11, 17 - 11], [19 - 11, 17 - 11]])  # x, y
    matrix = solve_inverse_affine(moves, 35, 39).numpy()
    for b in range(2):
        moved = np.column_stack([corners + moves[b].numpy(), np.ones(3)])
        np.testing.assert_allclose(moved @ matrix[b], corners, **EXACT)


def test_elastic_is_a_mirrored_affine_map_and_then_a_smooth_field() -> None:
    pixels = images(2, 3, 23, 29)
    found = elastic_transform(pixels, draws(), 3.2, 1.7, 2.24)
    moves = draws().uniform(-2.24, 2.24, 3, 2).double()
    noise = (
        PerImageRandom(0, "elastic of pixels", (3, 5)).uniform(-1, 1, 2, 23, 29).double().numpy()
    )
    y, x = np.mgrid[:23, :29].astype(float)
    for b, matrix in enumerate(solve_inverse_affine(moves, 23, 29).numpy()):
        from_x, from_y = np.moveaxis(np.stack([x, y, np.ones_like(x)], -1) @ matrix, -1, 0)
        right, down = (
            3.2 * ndimage.gaussian_filter(part, 1.7, mode="reflect", truncate=3)
            for part in noise[b]
        )
        assert np.abs(right).max() > 0.5
        for c in range(3):
            mapped = ndimage.map_coordinates(
                pixels[b, c].numpy(), [from_y, from_x], order=1, mode="mirror"
            )
            wanted = ndimage.map_coordinates(mapped, [y + down, x + right], order=1, mode="reflect")
            np.testing.assert_allclose(found[b, c], wanted, **EXACT)


def test_elastic_belongs_to_the_image() -> None:
    pixels = images(3, 1, 19, 23)
    together = elastic_transform(pixels, draws(11, 4, 9), 1.6, 2.0, 2.0)
    alone = elastic_transform(pixels[1:2], draws(4), 1.6, 2.0, 2.0)
    np.testing.assert_allclose(together[1:2], alone, **EXACT)
    assert not torch.equal(elastic_transform(pixels[1:2], draws(5), 1.6, 2.0, 2.0), alone)
    assert not torch.equal(elastic_transform(pixels[1:2], draws(4, seed=1), 1.6, 2.0, 2.0), alone)
    still = elastic_transform(pixels, draws(1, 2, 3), 0, 0, 0)  # strength 0 and no shift: the image
    np.testing.assert_allclose(still, pixels, **EXACT)


def levels(pixels: Tensor) -> list[Image.Image]:
    array = (pixels * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(one.squeeze(-1) if one.shape[-1] == 1 else one) for one in array]


@pytest.mark.parametrize("channels", [3, 1])
def test_pixelate_and_jpeg_are_pillows(channels: int) -> None:
    pixels = images(2, channels, 31, 37)
    small = pixelate(pixels, draws(), 0.6)
    written = jpeg_compression(pixels, draws(), 7)
    for b, image in enumerate(levels(pixels)):
        box = Image.Resampling.BOX
        coarse = np.asarray(image.resize((22, 18), box).resize((37, 31), box))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=7)
        for found, wanted in ((small, coarse), (written, np.asarray(Image.open(file)))):
            rows = wanted.reshape(31, 37, channels).transpose(2, 0, 1) / 255
            np.testing.assert_allclose(found[b], rows, **EXACT)
