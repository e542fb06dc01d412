"""The noises of ImageNet-C: Hendrycks & Dietterich, arXiv 1903.12261; imagenet_c/corruptions.py.

Each takes images in [0, 1] and gives such images, which may leave [0, 1]: what calls them cuts
that off. Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from patchwords.evaluate.robustness.draws import PerImageRandom


def gaussian_noise(images: Tensor, draws: PerImageRandom, deviation: float) -> Tensor:
    """What a sensor adds in low light: normal, in each channel by itself."""
    return images + deviation * _normal(images, draws)


def shot_noise(images: Tensor, draws: PerImageRandom, photons: float) -> Tensor:
    """Light comes in grains: a Poisson count, where white is so many photons on average."""
    rates = (images * photons).cpu()
    counts = [
        torch.poisson(rate, generator=generator)
        for rate, generator in zip(rates, draws.generators(), strict=True)
    ]
    return torch.stack(counts).to(images.device) / photons


def impulse_noise(images: Tensor, draws: PerImageRandom, amount: float) -> Tensor:
    """Salt and pepper: this share of the values becomes 0 or 1, each as often."""
    chance = draws.uniform(0, 1, 2, *images.shape[1:])  # [B, 2, C, H, W]: whether, and which
    return torch.where(chance[:, 0] < amount, (chance[:, 1] < 0.5).to(images.dtype), images)


def speckle_noise(images: Tensor, draws: PerImageRandom, deviation: float) -> Tensor:
    """Normal noise that is larger where the image is brighter."""
    return images + images * deviation * _normal(images, draws)


def _normal(images: Tensor, draws: PerImageRandom) -> Tensor:
    shape = images.shape[1:]
    return draws.each(lambda own: torch.randn(shape, generator=own)).to(images.dtype)
