"""Common corruptions: the kinds of ImageNet-C that need no image files.

Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations" (arXiv 1903.12261): the noise, blur and digital families, brightness of the weather
family, and two of the extra kinds. Frost, fog and snow are left out, as are the extra kinds
spatter and saturate: frost needs photographs, and the other weather kinds consist of drawn clouds,
flakes and drops, whose details no description fixes.

The parameters are those of the authors' ImageNet-C/create_c/: make_cifar_c.py for 32 pixels,
make_tinyimagenet_c.py for 64, make_imagenet_c.py for 224. Lengths are in pixels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from patchwords.evaluation.robustness.corruption_ops import (
    defocus_blur,
    elastic_transform,
    gaussian_blur,
    gaussian_noise,
    glass_blur,
    impulse_noise,
    jpeg_compression,
    motion_blur,
    pixelate,
    reduce_contrast,
    shift_brightness,
    shot_noise,
    speckle_noise,
    zoom_blur,
)
from patchwords.evaluation.robustness.perturbation import (
    PerImageRandom,
    Perturbation,
    PerturbationBatch,
    PerturbationFn,
)

EXTRA_FAMILY = "extra"  # kinds that ImageNet-C keeps for validation: excluded from means

SeverityNumbers = tuple[tuple[float, ...], ...]  # parameters at severities 1 to 5


@dataclass(frozen=True)
class CommonCorruption:
    """One kind, with its parameters for the authors' three image sizes."""

    family: str
    kind: str
    title: str
    corrupt: Callable[..., Tensor]  # (images in [0, 1], draws, *numbers) -> images
    seeds: bool  # whether the corruption is random
    at_32: SeverityNumbers
    at_64: SeverityNumbers
    at_224: SeverityNumbers

    @property
    def name(self) -> str:
        return f"{self.family}-{self.kind}"

    def numbers(self, size: tuple[int, int]) -> SeverityNumbers:
        """Parameters for the image size nearest in ratio, by the shorter side."""
        tables = {32: self.at_32, 64: self.at_64, 224: self.at_224}
        return tables[min(tables, key=lambda side: abs(math.log(min(size) / side)))]


def one_per_severity(*values: float) -> SeverityNumbers:
    """Wrap one parameter per severity."""
    return tuple((value,) for value in values)


COMMON_CORRUPTIONS = (
    CommonCorruption(
        family="noise",
        kind="gaussian",
        title="Gaussian noise",
        corrupt=gaussian_noise,
        seeds=True,
        at_32=one_per_severity(0.04, 0.06, 0.08, 0.09, 0.10),
        at_64=one_per_severity(0.04, 0.08, 0.12, 0.15, 0.18),
        at_224=one_per_severity(0.08, 0.12, 0.18, 0.26, 0.38),
    ),
    CommonCorruption(
        family="noise",
        kind="shot",
        title="Shot noise",
        corrupt=shot_noise,
        seeds=True,
        at_32=one_per_severity(500, 250, 100, 75, 50),
        at_64=one_per_severity(250, 100, 50, 30, 15),
        at_224=one_per_severity(60, 25, 12, 5, 3),
    ),
    CommonCorruption(
        family="noise",
        kind="impulse",
        title="Impulse noise",
        corrupt=impulse_noise,
        seeds=True,
        at_32=one_per_severity(0.01, 0.02, 0.03, 0.05, 0.07),
        at_64=one_per_severity(0.01, 0.02, 0.05, 0.08, 0.14),
        at_224=one_per_severity(0.03, 0.06, 0.09, 0.17, 0.27),
    ),
    CommonCorruption(
        family="blur",
        kind="defocus",
        title="Defocus blur",
        corrupt=defocus_blur,
        seeds=False,
        at_32=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        at_64=((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        at_224=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    CommonCorruption(
        family="blur",
        kind="glass",
        title="Glass blur",
        corrupt=glass_blur,
        seeds=True,
        at_32=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        at_64=((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        at_224=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    CommonCorruption(
        family="blur",
        kind="motion",
        title="Motion blur",
        corrupt=motion_blur,
        seeds=True,
        at_32=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        at_64=((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        at_224=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    CommonCorruption(
        family="blur",
        kind="zoom",
        title="Zoom blur",
        corrupt=zoom_blur,
        seeds=False,
        at_32=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        at_64=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        at_224=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    CommonCorruption(
        family="digital",
        kind="contrast",
        title="Contrast",
        corrupt=reduce_contrast,
        seeds=False,
        at_32=one_per_severity(0.75, 0.5, 0.4, 0.3, 0.15),
        at_64=one_per_severity(0.4, 0.3, 0.2, 0.1, 0.05),
        at_224=one_per_severity(0.4, 0.3, 0.2, 0.1, 0.05),
    ),
    CommonCorruption(
        family="digital",
        kind="elastic",
        title="Elastic transform",
        corrupt=elastic_transform,
        seeds=True,
        at_32=(
            (0, 0, 2.56),
            (1.6, 6.4, 2.24),
            (2.56, 1.92, 1.92),
            (3.2, 1.28, 1.6),
            (3.2, 0.96, 0.96),
        ),
        at_64=(
            (0, 0, 5.12),
            (3.2, 19.2, 3.84),
            (6.4, 5.12, 3.84),
            (6.4, 1.92, 1.92),
            (10.24, 1.92, 1.28),
        ),
        # of 244 pixels, where 224 was meant; their images were made so
        at_224=(
            (488, 170.8, 24.4),
            (488, 19.52, 48.8),
            (12.2, 2.44, 4.88),
            (17.08, 2.44, 4.88),
            (29.28, 2.44, 4.88),
        ),
    ),
    CommonCorruption(
        family="digital",
        kind="pixelate",
        title="Pixelate",
        corrupt=pixelate,
        seeds=False,
        at_32=one_per_severity(0.95, 0.9, 0.85, 0.75, 0.65),
        at_64=one_per_severity(0.9, 0.8, 0.7, 0.6, 0.5),
        at_224=one_per_severity(0.6, 0.5, 0.4, 0.3, 0.25),
    ),
    CommonCorruption(
        family="digital",
        kind="jpeg",
        title="JPEG compression",
        corrupt=jpeg_compression,
        seeds=False,
        at_32=one_per_severity(80, 65, 58, 50, 40),
        at_64=one_per_severity(65, 58, 50, 40, 25),
        at_224=one_per_severity(25, 18, 15, 10, 7),
    ),
    CommonCorruption(
        family="weather",
        kind="brightness",
        title="Brightness",
        corrupt=shift_brightness,
        seeds=False,
        at_32=one_per_severity(0.05, 0.1, 0.15, 0.2, 0.3),
        at_64=one_per_severity(0.1, 0.2, 0.3, 0.4, 0.5),
        at_224=one_per_severity(0.1, 0.2, 0.3, 0.4, 0.5),
    ),
    CommonCorruption(
        family=EXTRA_FAMILY,
        kind="speckle-noise",
        title="Speckle noise",
        corrupt=speckle_noise,
        seeds=True,
        at_32=one_per_severity(0.06, 0.1, 0.12, 0.16, 0.2),
        at_64=one_per_severity(0.15, 0.2, 0.25, 0.3, 0.35),
        at_224=one_per_severity(0.15, 0.2, 0.35, 0.45, 0.6),
    ),
    CommonCorruption(
        family=EXTRA_FAMILY,
        kind="gaussian-blur",
        title="Gaussian blur",
        corrupt=gaussian_blur,
        seeds=False,
        at_32=one_per_severity(0.4, 0.6, 0.7, 0.8, 1),
        at_64=one_per_severity(0.5, 0.75, 1, 1.25, 1.5),
        at_224=one_per_severity(1, 2, 3, 4, 6),
    ),
)


# Images are corrupted at the model's size, with ImageNet-C's parameters for the nearest size: lengths
# are in pixels and not scaled, so an image of 384 pixels is blurred relatively less than one of 224.
# The authors' images were rounded down, and for ImageNet-C saved as JPEG; here they are rounded to
# the nearest level.


SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)
STANDARD_CORRUPTION_NAMES = tuple(
    corruption.name for corruption in COMMON_CORRUPTIONS if corruption.family != EXTRA_FAMILY
)


def make_corruption_fn(corruption: CommonCorruption) -> PerturbationFn:
    """Make the change of a severity from 1 to 5."""

    def change(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
        """-> uint8 [B, C, H, W]"""
        images = batch.images.float() / 255
        numbers = corruption.numbers((images.shape[2], images.shape[3]))[int(level) - 1]
        draws = PerImageRandom(seed, corruption.name, batch.indices, images.device)
        corrupted = corruption.corrupt(images, draws, *numbers)
        return (corrupted.clamp(0, 1) * 255).round().byte()

    return change


def summarise_corruptions(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summarise rows of `measure_robustness` per model: mean, family and relative errors.

    `mean_error` is the mean over the kinds (without the extra ones), of each over its severities
    and seeds; `families` are such means of each family. `relative_error` compares with the first
    model: the mean over the kinds of the ratio of errors, which is the mCE of ImageNet-C (Sec. 4.1)
    with that model in AlexNet's place; None where it makes no error. Empty without such rows.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["disturbance"] in STANDARD_CORRUPTION_NAMES and row["level"] > 0:
            found[row["model"]][row["disturbance"]].append(1 - row["accuracy"])
    errors = {
        model: {kind: float(np.mean(values)) for kind, values in kinds.items()}
        for model, kinds in found.items()
    }
    first = next(iter(errors.values()), {})
    return {
        model: {
            "mean_error": float(np.mean([*kinds.values()])),
            "families": mean_error_by_family(kinds),
            "relative_error": mean_relative_error(kinds, first),
        }
        for model, kinds in errors.items()
    }


def mean_error_by_family(errors: Mapping[str, float]) -> dict[str, float]:
    """Average {kind: error} per family."""
    families = defaultdict(list)
    for corruption in COMMON_CORRUPTIONS:
        if corruption.name in errors:
            families[corruption.family].append(errors[corruption.name])
    return {family: float(np.mean(values)) for family, values in families.items()}


def mean_relative_error(
    errors: Mapping[str, float], reference: Mapping[str, float]
) -> float | None:
    """Average the ratio of errors over the kinds."""
    if min(reference.values()) == 0:
        return None
    return float(np.mean([error / reference[kind] for kind, error in errors.items()]))


PUBLISHED_CORRUPTIONS = (
    "Naseer et al. (2021; ImageNet-C, all 15 kinds, errors relative to AlexNet's) give as mean "
    "corruption error: DeiT-B 48.5, DeiT-S 54.6, DeiT-T 71.1, ResNet-50 76.7."
)
CORRUPTION_PERTURBATIONS = tuple(
    Perturbation(
        name=corruption.name,
        family=corruption.family,
        title=corruption.title,
        x_label="severity",
        levels=SEVERITIES,
        published=PUBLISHED_CORRUPTIONS,
        change=make_corruption_fn(corruption),
        seeds=corruption.seeds,
        usual=corruption.family != EXTRA_FAMILY,
    )
    for corruption in COMMON_CORRUPTIONS
)
