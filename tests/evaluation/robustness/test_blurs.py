"""Blurs against the published descriptions, written out pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from patchwords.evaluation.robustness.corruption_ops import (
    crop_centre,
    defocus_blur,
    gaussian_blur,
    gaussian_filter,
    glass_blur,
    make_disk_kernel,
    mix_nearby_pixels,
    motion_blur,
    zoom_blur,
    zoom_into_centre,
)
from patchwords.evaluation.robustness.perturbation import PerImageRandom

EXACT = {"rtol": 0, "atol": 1e-12}  # float64, sums of a few hundred products


def images(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).random(shape))


def draws(*indices: int, seed: int = 0) -> PerImageRandom:
    return PerImageRandom(seed, "blur", indices or (3, 5))


@pytest.mark.parametrize("reach", [1, 2, 3])
def test_mixing_is_the_published_loop(reach: int) -> None:
    """The loop of glass_blur, its exchange of two views included: one of the values is lost."""
    height, width = 13, 17
    pixels = images(2, 3, height, width)
    random = np.random.default_rng(reach)
    steps = random.integers(-reach, reach, (2, 2, height, width))
    wanted = pixels.numpy().transpose(0, 2, 3, 1).copy()  # [B, H, W, C]
    for x, (down, across) in zip(wanted, steps, strict=True):
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                there = h + down[h, w], w + across[h, w]
                x[h, w], x[there] = x[there], x[h, w]
    found = mix_nearby_pixels(pixels, torch.from_numpy(steps), reach)
    np.testing.assert_array_equal(found.numpy().transpose(0, 2, 3, 1), wanted)


def test_mixing_follows_long_chains() -> None:
    """Every pixel takes that to its right: the one at the end of the row fills it."""
    steps = torch.zeros(1, 2, 5, 41, dtype=torch.int64)
    steps[:, 1] = 1
    pixels = torch.arange(205.0).view(1, 1, 5, 41)
    mixed = mix_nearby_pixels(pixels, steps, 2)
    assert mixed[0, 0, 3, 3:40].tolist() == [pixels[0, 0, 3, 40]] * 37
    assert torch.equal(mixed[0, 0, :3], pixels[0, 0, :3])  # the rim stays
    assert torch.equal(mixed[..., :3], pixels[..., :3])


def test_an_image_too_small_for_mixing_stays() -> None:
    pixels = images(1, 1, 4, 4)
    assert torch.equal(
        mix_nearby_pixels(pixels, torch.zeros(1, 2, 4, 4, dtype=torch.int64), 4), pixels
    )


def test_glass_blur_smooths_mixes_and_smooths() -> None:
    pixels = images(2, 3, 13, 17)
    blurred = glass_blur(pixels, draws(), 0.05, 2, 1)  # too narrow a curve to smooth
    changed = (blurred != pixels).any(1)
    assert changed[:, 3:12, 3:16].float().mean() > 0.5
    assert not changed[:, :3].any()
    assert not changed[:, :, :3].any()
    assert set(blurred[0, 0].flatten().tolist()) <= set(pixels[0, 0].flatten().tolist())
    steps = draws().each(lambda own: torch.randint(-2, 2, (2, 2, 13, 17), generator=own))
    wanted = gaussian_filter(pixels, 0.9)
    for step in (steps[:, 0], steps[:, 1]):
        wanted = mix_nearby_pixels(wanted, step, 2)
    torch.testing.assert_close(glass_blur(pixels, draws(), 0.9, 2, 2), gaussian_filter(wanted, 0.9))


@pytest.mark.parametrize("radius", [0.3, 1.5, 3, 8, 10])
def test_the_disk_is_a_softened_circle(radius: float) -> None:
    soft = 0.5
    reach, side = (8, 3) if radius <= 8 else (10, 5)
    line = np.arange(-reach, reach + 1)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    inside /= inside.sum()
    curve = np.exp(-((np.arange(side) - side // 2) ** 2) / (2 * soft**2))
    weights = np.outer(curve, curve) / curve.sum() ** 2
    wanted = ndimage.correlate(inside, weights, mode="mirror")
    found = make_disk_kernel(radius, soft)
    margin = (len(wanted) - len(found)) // 2
    inner = slice(margin, len(wanted) - margin)
    np.testing.assert_allclose(found, wanted[inner, inner], rtol=1e-6)  # float32
    assert wanted.sum() == pytest.approx(found.sum().item())  # nothing but zeros was cut off


def test_defocus_is_a_correlation_with_the_disk_mirrored_at_the_border() -> None:
    pixels = images(2, 3, 23, 29)
    kernel = make_disk_kernel(3, 0.1).double().numpy()
    found = defocus_blur(pixels, draws(), 3, 0.1)
    for b in range(2):
        for c in range(3):
            wanted = ndimage.correlate(pixels[b, c].numpy(), kernel, mode="mirror")
            np.testing.assert_allclose(found[b, c], wanted, **EXACT)


def test_motion_blur_walks_along_a_line_as_imagemagick_does() -> None:
    pixels = images(2, 3, 23, 29)
    angles = draws().uniform(-45, 45).double().deg2rad()
    assert len(set(angles.tolist())) == 2
    assert angles.abs().max() < math.pi / 4
    found = motion_blur(pixels, draws(), 6, 2.5)
    weights = [math.exp(-(i**2) / (2 * 2.5**2)) for i in range(13)]
    for b, angle in enumerate(angles.tolist()):
        wanted = np.zeros((3, 23, 29))
        for i, weight in enumerate(weights):
            down = math.ceil(i * math.sin(angle) - 0.5)
            across = math.ceil(i * math.cos(angle) - 0.5)
            for y in range(23):
                for x in range(29):
                    row, column = min(max(y + down, 0), 22), min(max(x + across, 0), 28)
                    wanted[:, y, x] += weight / sum(weights) * pixels[b, :, row, column].numpy()
        np.testing.assert_allclose(found[b], wanted, **EXACT)


@pytest.mark.parametrize("factor", [1.0, 1.06, 1.25, 1.3])
def test_enlarging_is_scipys_zoom_of_the_middle(factor: float) -> None:
    pixels = images(1, 2, 31, 37)
    height, width = (math.ceil(side / factor) for side in (31, 37))
    top, left = (31 - height) // 2, (37 - width) // 2
    for c in range(2):
        middle = pixels[0, c, top : top + height, left : left + width].numpy()
        large = ndimage.zoom(middle, factor, order=1)
        above, beside = (large.shape[0] - 31) // 2, (large.shape[1] - 37) // 2
        wanted = large[above : above + 31, beside : beside + 37]
        np.testing.assert_allclose(zoom_into_centre(pixels, factor)[0, c], wanted, **EXACT)


def test_zoom_blur_is_the_mean_of_the_image_and_its_enlargements() -> None:
    pixels = images(2, 3, 31, 37)
    for farthest, step, last in ((1.11, 0.01, 12), (1.16, 0.01, 16), (1.31, 0.03, 11)):
        factors = [1 + step * i for i in range(last)]  # NumPy counts 1.11 in, 1.16 not
        wanted = (pixels + sum(zoom_into_centre(pixels, factor) for factor in factors)) / (last + 1)
        np.testing.assert_allclose(zoom_blur(pixels, draws(), farthest, step), wanted, atol=1e-9)


def test_the_middle_is_cut_as_the_published_code_does() -> None:
    assert crop_centre(torch.arange(7.0).view(1, 1, 1, 7), [1, 4]).flatten().tolist() == [
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize(
    ("blur", "numbers"),
    [
        (gaussian_blur, (1.3,)),
        (defocus_blur, (3, 0.5)),
        (glass_blur, (0.7, 1, 2)),
        (motion_blur, (6, 2)),
        (zoom_blur, (1.11, 0.01)),
    ],
)
def test_blurs_leave_one_colour_alone_and_images_to_themselves(blur, numbers) -> None:  # type: ignore[no-untyped-def]
    flat = torch.full((2, 3, 19, 23), 0.3)
    torch.testing.assert_close(blur(flat, draws(), *numbers), flat)
    pixels = images(3, 1, 19, 23)
    together = blur(pixels, draws(11, 4, 9), *numbers)
    alone = blur(pixels[1:2], draws(4), *numbers)
    # A product with a matrix may be summed in another order in another batch.
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1e-14)
    if blur in (glass_blur, motion_blur):
        assert not torch.equal(blur(pixels[1:2], draws(5), *numbers), alone)
        assert not torch.equal(blur(pixels[1:2], draws(4, seed=1), *numbers), alone)
