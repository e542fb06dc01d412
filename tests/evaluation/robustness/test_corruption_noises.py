"""Noises: published moments, independence of batches, and nothing random left to chance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from patchwords.evaluation.robustness.corruption_ops import (
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)
from patchwords.evaluation.robustness.perturbation import PerImageRandom

SHAPE = (2, 3, 211, 223)
MANY = 2 * 3 * 211 * 223  # values: a mean of them is off by 1/530 deviations


def grey(level: float) -> Tensor:
    return torch.full(SHAPE, level)


def draws(name: str = "noise", seed: int = 0, indices: tuple[int, ...] = (5, 7)) -> PerImageRandom:
    return PerImageRandom(seed, name, indices)


def test_gaussian_noise_has_mean_zero_and_the_asked_deviation() -> None:
    noise = gaussian_noise(grey(0.5), draws(), 0.13) - 0.5
    assert abs(noise.mean()) < 5 * 0.13 / MANY**0.5
    assert noise.std().item() == pytest.approx(0.13, rel=0.01)  # 5 / sqrt(2 MANY) is 0.007


def test_speckle_noise_grows_with_the_brightness() -> None:
    for level in (0.2, 0.8):
        noise = speckle_noise(grey(level), draws(), 0.3) - level
        assert noise.std().item() == pytest.approx(0.3 * level, rel=0.01)


def test_shot_noise_is_a_count_with_the_variance_of_poisson() -> None:
    noisy = shot_noise(grey(0.4), draws(), 25)
    counts = noisy * 25
    torch.testing.assert_close(counts, counts.round())
    assert counts.mean().item() == pytest.approx(10, rel=0.01)
    assert counts.var().item() == pytest.approx(10, rel=0.02)


def test_impulse_noise_is_salt_and_pepper_in_equal_parts() -> None:
    noisy = impulse_noise(grey(0.5), draws(), 0.17)
    assert set(noisy.unique().tolist()) == {0.0, 0.5, 1.0}
    assert (noisy != 0.5).float().mean().item() == pytest.approx(0.17, abs=0.004)
    assert (noisy == 1).float().mean().item() == pytest.approx(0.085, abs=0.003)


NOISES = [(gaussian_noise, 0.1), (speckle_noise, 0.2), (shot_noise, 60), (impulse_noise, 0.3)]


@pytest.mark.parametrize(
    ("noise", "amount"), NOISES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_an_image_is_disturbed_by_the_seed_the_name_and_its_place_alone(
    noise: Callable[..., Tensor], amount: float
) -> None:
    images = torch.rand(3, 3, 11, 13, generator=torch.Generator().manual_seed(1))
    together = noise(images, PerImageRandom(2, "a", [19, 3, 7]), amount)
    alone = noise(images[1:2], PerImageRandom(2, "a", [3]), amount)
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=0)
    for other in (
        PerImageRandom(3, "a", [3]),
        PerImageRandom(2, "b", [3]),
        PerImageRandom(2, "a", [4]),
    ):
        assert not torch.equal(noise(images[1:2], other, amount), alone)
    same = noise(images[:1].expand(2, -1, -1, -1), PerImageRandom(2, "a", [3, 4]), amount)
    assert not torch.equal(same[0], same[1])
