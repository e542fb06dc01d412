"""Augmentation on the batch: operations against Pillow, mixing by hand, independence."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from patchwords.data import randaugment as ra
from patchwords.data.augment import AugmentSettings
from patchwords.data.batch_augment import (
    augment_batch,
    cutmix,
    jitter_colors,
    mixup,
    random_erasing,
)
from patchwords.data.randaugment import randaugment
from patchwords.data.sampler import SampleKey
from patchwords.rng import numpy_generator

B, H, W = 5, 29, 37


@pytest.fixture
def images() -> torch.Tensor:
    """Smooth colours with noise, not the full range: a flat one and a narrow one among them."""
    rng = np.random.default_rng(0)
    small = rng.integers(20, 220, (B, 5, 7, 3), np.uint8)
    large = [np.asarray(Image.fromarray(s).resize((W, H))).astype(int) for s in small]
    pixels = np.clip(np.stack(large) + rng.integers(-9, 10, (B, H, W, 3)), 0, 255)
    pixels[3] = 77  # flat
    pixels[4] = pixels[4] // 8 + 100  # narrow
    return torch.from_numpy(pixels.astype(np.uint8)).permute(0, 3, 1, 2)


def by_pillow(
    images: torch.Tensor, function: Callable[[Image.Image, float], Image.Image], values: list[float]
) -> torch.Tensor:
    out = [
        np.array(function(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()), value))
        for image, value in zip(images, values, strict=True)
    ]
    return torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2)


FACTORS = [0.1, 0.73, 1.0, 1.9, 3.7]
LEVELS = [1.0, 2.0, 4.0, 7.0, 8.0]


@pytest.mark.parametrize(
    ("ours", "pillow", "values"),
    [
        (lambda x, k: ra.autocontrast(x), lambda im, k: ImageOps.autocontrast(im), LEVELS),
        (lambda x, k: ra.equalize(x), lambda im, k: ImageOps.equalize(im), LEVELS),
        (ra.posterize, lambda im, k: ImageOps.posterize(im, int(k)), LEVELS),
        (
            ra.solarize,
            lambda im, k: ImageOps.solarize(im, int(k)),
            [0.0, 31.0, 128.0, 200.0, 256.0],
        ),
        (ra.adjust_brightness, lambda im, k: ImageEnhance.Brightness(im).enhance(k), FACTORS),
        (ra.adjust_contrast, lambda im, k: ImageEnhance.Contrast(im).enhance(k), FACTORS),
        (ra.adjust_saturation, lambda im, k: ImageEnhance.Color(im).enhance(k), FACTORS),
        (ra.adjust_sharpness, lambda im, k: ImageEnhance.Sharpness(im).enhance(k), FACTORS),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_colour_operations_are_pillows(
    images: torch.Tensor, ours: Callable, pillow: Callable, values: list[float]
) -> None:
    got = ours(images, torch.tensor(values, dtype=torch.float64))
    assert got.dtype == torch.uint8
    assert torch.equal(got, by_pillow(images, pillow, values))


DEGREES = [-30.0, -7.0, 0.0, 11.0, 60.0]
SHEARS = [-0.3, -0.1, 0.0, 0.2, 0.6]


@pytest.mark.parametrize(
    ("ours", "pillow", "values"),
    [
        (ra.rotate, lambda im, k: im.rotate(k, fillcolor=(128, 128, 128)), DEGREES),
        (
            lambda x, k: ra.affine(x, ra._matrices(k, b=k)),
            lambda im, k: _transform(im, (1, k, 0, 0, 1, 0)),
            SHEARS,
        ),
        (
            lambda x, k: ra.affine(x, ra._matrices(k, d=k, f=3 * k)),
            lambda im, k: _transform(im, (1, 0, 0, k, 1, 3 * k)),
            SHEARS,
        ),
    ],
    ids=["rotate", "shear_x", "shear_and_shift_y"],
)
def test_geometric_operations_are_pillows(
    images: torch.Tensor, ours: Callable, pillow: Callable, values: list[float]
) -> None:
    got = ours(images, torch.tensor(values, dtype=torch.float64))
    want = by_pillow(images, pillow, values)
    # Pillow computes in 16.16 fixed point: on a tie it may take the pixel beside.
    assert (got != want).any(dim=1).double().mean() < 0.01


def _transform(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=(128, 128, 128))


def test_translation_moves_whole_columns() -> None:
    ramp = torch.arange(8, dtype=torch.uint8).expand(2, 3, 8, 8)
    k = torch.tensor([2.0, -3.0], dtype=torch.float64)
    got = ra.affine(ramp, ra._matrices(k, c=k))
    assert got[0, 0, 0].tolist() == [2, 3, 4, 5, 6, 7, 128, 128]
    assert got[1, 0, 0].tolist() == [128, 128, 128, 0, 1, 2, 3, 4]


def test_cutout_solarize_add_and_level_zero() -> None:
    zeros = torch.zeros(2, 3, 12, 10, dtype=torch.uint8)
    amounts = torch.tensor([[0.25, 0.5, 0.5], [0.25, 0.0, 0.99]], dtype=torch.float64)
    cut = ra.cutout(zeros, amounts) == ra.FILL_VALUE  # half side 3
    assert cut[0].sum() == 3 * 6 * 6
    assert cut[0, 0, 3:9, 2:8].all()
    assert cut[1, :, :3, 6:].all()  # clipped at the corner
    assert cut[1].sum() == 3 * 3 * 4
    values = torch.tensor([0, 100, 127, 128, 255], dtype=torch.uint8).reshape(1, 1, 1, 5)
    added = ra.solarize_add(values, torch.tensor([110.0]))
    assert added.flatten().tolist() == [110, 210, 237, 128, 255]
    assert ra.posterize(values, torch.tensor([0.0])).flatten().tolist() == [0, 0, 0, 128, 128]


def test_randaugment_draws_every_operation_and_level_zero_is_not_nothing() -> None:
    image = torch.randint(0, 256, (1, 3, 17, 19), generator=torch.Generator().manual_seed(0))
    many = image.to(torch.uint8).expand(400, -1, -1, -1)
    chosen = {
        int(numpy_generator(0, "augment-device", 0, i, 0).random(4)[0] * len(ra.OPERATIONS))
        for i in range(400)
    }
    assert chosen == set(range(16))
    generators = [numpy_generator(0, "augment-device", 0, i, 0) for i in range(400)]
    out = randaugment(many, generators, 1, 0)
    changed = (out != many).flatten(1).any(1).double().mean()
    # at level 0 geometry and cutout do nothing (6 of 16), nor does adding 0; noise of the full
    # range is its own autocontrast: 8 of 16 change it
    assert changed == pytest.approx(0.5, abs=0.1)


ALL = AugmentSettings(randaugment=(2, 15), color_jitter=0.4, erase=0.5)


def test_what_happens_to_an_image_does_not_depend_on_the_batch(images: torch.Tensor) -> None:
    labels = torch.arange(B)
    places = [SampleKey(1, 10 + i) for i in range(B)]
    together, same = augment_batch(images, labels, places, ALL, 3, 11, step=0)
    assert together.dtype == torch.uint8
    assert torch.equal(same, labels)
    for i in range(B):
        alone, _ = augment_batch(images[i : i + 1], labels[i : i + 1], [places[i]], ALL, 3, 11, 99)
        assert torch.equal(alone[0], together[i])
    other = [SampleKey(2, place.sample) for place in places]
    assert not torch.equal(augment_batch(images, labels, other, ALL, 3, 11, 0)[0], together)


def test_the_input_and_the_global_generators_are_left_alone(images: torch.Tensor) -> None:
    before, torch_state, numpy_state = images.clone(), torch.get_rng_state(), np.random.get_state()
    config = AugmentSettings(
        randaugment=(3, 10), color_jitter=0.4, erase=1.0, mixup=0.2, cutmix=1.0
    )
    for step in range(4):
        places = [SampleKey(0, i) for i in range(B)]
        augment_batch(images, torch.arange(B), places, config, 0, 7, step)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state[1]).all()


def test_an_empty_batch_and_grey_images_pass() -> None:
    config = AugmentSettings(randaugment=(2, 15), color_jitter=0.4, erase=1.0, mixup=0.2)
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    out, targets = augment_batch(empty, torch.zeros(0, dtype=torch.int64), [], config, 0, 5, 0)
    assert out.shape == (0, 3, 8, 8)
    assert targets.shape == (0, 5)
    grey = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).repeat(40, 1, 1, 1)
    places = [SampleKey(0, i) for i in range(40)]
    out, _ = augment_batch(grey, torch.zeros(40, dtype=torch.int64), places, config, 0, 5, 0)
    assert out.shape == grey.shape


def test_mixup_by_hand() -> None:
    images = torch.tensor([0, 100, 200], dtype=torch.uint8).reshape(3, 1, 1, 1).repeat(1, 3, 4, 4)
    labels = torch.tensor([0, 1, 1])
    share = numpy_generator(0, "x").beta(0.3, 0.3)
    share = max(share, 1 - share)
    mixed, targets = mixup(images, labels, numpy_generator(0, "x"), 0.3, 4)
    want = [share * a + (1 - share) * b for a, b in ((0, 200), (100, 0), (200, 100))]
    # half a grey level for the rounding, a little for float32
    assert mixed[:, 0, 0, 0].tolist() == pytest.approx(want, abs=0.5001)
    rows = [[share, 1 - share, 0, 0], [1 - share, share, 0, 0], [0, 1, 0, 0]]
    torch.testing.assert_close(targets, torch.tensor(rows, dtype=torch.float32))


def test_cutmix_labels_are_the_areas() -> None:
    images = torch.arange(1, 4, dtype=torch.uint8).reshape(3, 1, 1, 1).repeat(1, 3, 13, 17)
    labels = torch.tensor([0, 1, 2])
    shares = set()
    for draw in range(20):
        mixed, targets = cutmix(images, labels, numpy_generator(0, draw), 1.0, 3)
        torch.testing.assert_close(targets.sum(1), torch.ones(3))
        for row in range(3):
            own = (mixed[row, 0] == row + 1).double().mean().item()
            neighbour = (mixed[row, 0] == (row - 1) % 3 + 1).double().mean().item()
            assert own + neighbour == pytest.approx(1)
            assert targets[row, row].item() == pytest.approx(own, abs=1e-6)  # float32
        shares.add(own)
    assert len(shares) > 10
    assert min(shares) < 0.5 < max(shares)


def test_one_draw_a_step_and_both_kinds_in_turn(images: torch.Tensor) -> None:
    places, labels = [SampleKey(0, i) for i in range(B)], torch.arange(B)
    config = AugmentSettings(mixup=0.8, cutmix=1.0)
    kinds = []
    for step in range(20):
        mixed, targets = augment_batch(images, labels, places, config, 0, B, step)
        again = augment_batch(images, labels, places, config, 0, B, step)
        assert torch.equal(mixed, again[0])
        assert torch.equal(targets, again[1])
        torch.testing.assert_close(targets.sum(1), torch.ones(B))
        from_own, from_other = mixed == images, mixed == images.roll(1, 0)
        kinds.append(bool((from_own | from_other).all()))
    assert 3 <= sum(kinds) <= 17  # cutmix keeps every pixel of one of the two


def test_jitter_keeps_within_its_strength() -> None:
    flat = torch.full((50, 3, 6, 6), 100, dtype=torch.uint8)
    out = jitter_colors(flat, [numpy_generator(0, i) for i in range(50)], 0.2).double()
    # contrast and saturation leave a flat grey image alone; truncation costs up to a level each
    assert 80 - 3 <= out.min() < 88
    assert 112 < out.max() <= 120


def test_erase_has_its_probability_and_area() -> None:
    blank = torch.zeros(300, 3, 31, 31, dtype=torch.uint8)
    out = random_erasing(blank, [numpy_generator(0, i) for i in range(300)], 0.25)
    erased = (out != 0).any(1).flatten(1).double().mean(1)  # share of the image
    hit = erased > 0
    assert 48 <= hit.sum() <= 102  # binomial(300, 1/4): mean 75, deviation 7.5
    assert erased[hit].max() <= 0.4 + 3 / 31  # sides are rounded to whole pixels
    assert math.isclose(out[out != 0].double().mean().item(), 128, abs_tol=3)
