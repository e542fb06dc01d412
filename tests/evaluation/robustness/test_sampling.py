"""Places beyond the border, fractional places, and smoothing, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from patchwords.evaluation.robustness.corruption_ops import (
    BorderMode,
    gather_pixels,
    gaussian_filter,
    mirror_indices,
    sample_bilinear,
)

EXACT = {"rtol": 0, "atol": 1e-12}  # float64, sums of a few hundred products


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(("twice", "mode"), [(True, "symmetric"), (False, "reflect")])
def test_mirror_goes_to_and_fro_as_numpy_pads(length: int, twice: bool, mode: str) -> None:
    padded = np.pad(np.arange(length), 17, mode=mode)  # type: ignore[call-overload]
    assert mirror_indices(np.arange(-17, length + 17), length, twice).tolist() == padded.tolist()


def test_take_gives_each_image_its_own_places() -> None:
    pixels = images(2, 3, 5, 7)
    rows = np.array([[[0], [4]], [[2], [1]]])  # [2, 2, 1]
    columns = np.array([[[6, 0, 3]], [[5, 5, 1]]])  # [2, 1, 3]
    found = gather_pixels(*map(torch.from_numpy, (pixels, rows, columns)))
    for b in range(2):
        wanted = pixels[b][:, rows[b, :, 0]][:, :, columns[b, 0]]
        np.testing.assert_array_equal(found[b], wanted)


@pytest.mark.parametrize(("twice", "mode"), [(True, "reflect"), (False, "mirror")])
def test_sample_is_scipys_map_coordinates(twice: bool, mode: str) -> None:
    pixels = images(2, 3, 11, 13)
    random = np.random.default_rng(1)
    rows, columns = random.uniform(-25, 35, (2, 2, 17, 19))
    found = sample_bilinear(*map(torch.from_numpy, (pixels, rows, columns)), twice)
    for b in range(2):
        for c in range(3):
            wanted = ndimage.map_coordinates(
                pixels[b, c], [rows[b], columns[b]], order=1, mode=mode
            )
            np.testing.assert_allclose(found[b, c], wanted, **EXACT)


@pytest.mark.parametrize("border", ["nearest", "reflect"])
@pytest.mark.parametrize(("deviation", "truncate"), [(0.05, 4), (0.7, 4), (3, 4), (29, 3)])
def test_smooth_is_scipys_gaussian_filter_even_wider_than_the_image(
    border: BorderMode, deviation: float, truncate: float
) -> None:
    pixels = images(2, 3, 11, 13)
    found = gaussian_filter(torch.from_numpy(pixels), deviation, truncate, border)
    for b in range(2):
        for c in range(3):
            wanted = ndimage.gaussian_filter(
                pixels[b, c], deviation, mode=border, truncate=truncate
            )
            np.testing.assert_allclose(found[b, c], wanted, **EXACT)


def test_smooth_of_deviation_zero_changes_nothing() -> None:
    pixels = torch.from_numpy(images(1, 1, 5, 7))
    assert torch.equal(gaussian_filter(pixels, 0), pixels)
