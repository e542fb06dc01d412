"""Texture removed: the guided filter as published, and pixels that stay in their squares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from subjects import RESNET, VIT, batch_of, lively, pixels, still

from patchwords.evaluation.robustness.shuffling import (
    TEXTURE_PERTURBATIONS,
    choose_smoothing_radius,
    guided_filter,
    list_square_sides,
    shuffle_within_squares,
    smooth_texture,
    window_mean,
)

SMOOTHING, SHUFFLING = TEXTURE_PERTURBATIONS


def windows(image: np.ndarray, radius: int) -> np.ndarray:
    """[H, W] -> [H, W], the mean of each window, pixel by pixel"""
    height, width = image.shape
    return np.array(
        [
            [
                image[
                    max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1
                ].mean()
                for x in range(width)
            ]
            for y in range(height)
        ]
    )


@pytest.mark.parametrize("size", [1, 2, 5])
def test_window_means_leave_out_what_is_not_there(size: int) -> None:
    images = pixels(2, (7, 11)).double()
    found = window_mean(images, size)
    for b, c in np.ndindex(2, 3):
        np.testing.assert_allclose(found[b, c], windows(images[b, c].numpy(), size), rtol=1e-12)


def test_the_guided_filter_is_that_of_the_paper() -> None:
    images, size, epsilon = pixels(2, (7, 11)).double(), 2, 30.0**2
    found = guided_filter(images, size, epsilon)
    for b, c in np.ndindex(2, 3):
        image = images[b, c].numpy()
        mean = windows(image, size)
        variance = windows(image * image, size) - mean * mean
        a = variance / (variance + epsilon)
        wanted = windows(a, size) * image + windows(mean * (1 - a), size)
        # float64, variances of numbers up to 255^2
        np.testing.assert_allclose(found[b, c], wanted, rtol=1e-10)


def test_a_flat_image_stays_and_a_strong_edge_is_kept_where_detail_goes() -> None:
    flat = torch.full((1, 3, 28, 28), 77, dtype=torch.float32)
    torch.testing.assert_close(guided_filter(flat, 2, 100.0), flat)
    half = torch.zeros(1, 1, 28, 28)
    half[..., 14:] = 200  # an edge of 200, detail of 10 to either side of it
    chequers = (torch.arange(28)[:, None] + torch.arange(28)) % 2 * 10.0
    found = guided_filter(half + chequers, 2, 40.0**2)
    # from column 18 on nothing in the windows of the windows is of the other side
    assert found[..., 5:23, 18:24].std() < 0.1 * chequers.std()
    across = found[0, 0, 5:23].mean(0)
    assert across[14] - across[13] > 0.75 * 200


def test_stronger_levels_leave_less_detail() -> None:
    batch = batch_of(lively(VIT))
    left = [float(smooth_texture(batch, level, 0).std()) for level in SMOOTHING.levels]
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == len(left)
    assert smooth_texture(batch, 20, 0).dtype == torch.float32
    strongest = smooth_texture(batch, 160, 0)
    assert strongest.amin() >= 0
    assert strongest.amax() <= 255


def test_a_level_is_the_contrast_that_is_smoothed_away() -> None:
    batch = batch_of(lively(VIT))
    wanted = guided_filter(batch.images.float(), 1, 40.0**2)
    assert torch.equal(smooth_texture(batch, 40, 0), wanted)


def test_windows_grow_with_the_image() -> None:
    assert [
        choose_smoothing_radius(torch.empty(1, 3, side, side + 9)) for side in (8, 32, 224, 384)
    ] == [
        1,
        1,
        8,
        14,
    ]


@pytest.mark.parametrize("side", [1, 3, 4, 16])
def test_pixels_stay_in_their_square_with_all_their_channels(side: int) -> None:
    batch = batch_of(lively(VIT), 3)  # 24 x 16: squares of 3 are cut off at the right
    found = shuffle_within_squares(batch, side, 0)
    moved = 0
    for b in range(3):
        for y in range(0, 24, side):
            for x in range(0, 16, side):
                here = (slice(y, y + side), slice(x, x + side))
                before, after = (
                    images[b, :, here[0], here[1]].flatten(1).T.tolist()
                    for images in (batch.images, found)
                )
                assert sorted(before) == sorted(after)
                moved += before != after
    assert moved == 0 if side == 1 else moved >= 3 * (24 // side) * (16 // side) * 0.9


def test_the_draw_depends_on_seed_square_and_image_and_not_on_the_batch() -> None:
    subject = lively(VIT)
    whole = shuffle_within_squares(batch_of(subject, 7), 4, 3)
    parts = [
        shuffle_within_squares(batch_of(subject, count, first), 4, 3)
        for count, first in ((3, 0), (4, 3))
    ]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, shuffle_within_squares(batch_of(subject, 7), 4, 2))
    batch = batch_of(subject, 5)
    batch.images.copy_(batch.images[:1].expand(5, -1, -1, -1))
    assert len({image.numpy().tobytes() for image in shuffle_within_squares(batch, 4, 0)}) == 5


def test_squares_leave_shapes() -> None:
    sizes = {224: (2, 4, 8, 16, 32), 64: (2, 4, 8, 16), 32: (2, 4, 8), 16: (2, 4)}
    for size, wanted in sizes.items():
        assert list_square_sides(still(RESNET.with_settings(image_size=size))) == wanted
        assert SHUFFLING.levels_of(still(RESNET.with_settings(image_size=size))) == wanted


def test_neither_claims_to_be_stylized_imagenet() -> None:
    for texture in TEXTURE_PERTURBATIONS:
        assert "No published number is comparable" in texture.published
