"""Common corruptions at five severities, and their mean error.

Images are corrupted as the model gets them, by ImageNet-C's numbers for the nearest size: lengths
are in pixels and are not scaled, so that an image of 384 pixels is blurred relatively less than
one of 224. The authors' images were rounded down, and for ImageNet-C saved as JPEG; here they are
rounded to the nearest level.

Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from patchwords.evaluate.robustness.disturbance import (
    Perturbation,
    PerturbationBatch,
    PerturbationFn,
)
from patchwords.evaluate.robustness.draws import PerImageRandom
from patchwords.evaluate.robustness.imagenet_c import (
    COMMON_CORRUPTIONS,
    EXTRA_FAMILY,
    CommonCorruption,
)

SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)
STANDARD_CORRUPTION_NAMES = tuple(
    corruption.name for corruption in COMMON_CORRUPTIONS if corruption.family != EXTRA_FAMILY
)


def make_corruption_fn(corruption: CommonCorruption) -> PerturbationFn:
    """The change that a severity of 1 to 5 stands for."""

    def change(batch: PerturbationBatch, level: float, seed: int) -> Tensor:
        """-> uint8 [B, C, H, W]"""
        images = batch.images.float() / 255
        numbers = corruption.numbers((images.shape[2], images.shape[3]))[int(level) - 1]
        draws = PerImageRandom(seed, corruption.name, batch.indices, images.device)
        corrupted = corruption.corrupt(images, draws, *numbers)
        return (corrupted.clamp(0, 1) * 255).round().byte()

    return change


def summarise_corruptions(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{model: {"mean_error", "families", "relative_error"}} of the rows of `measure_robustness`.

    `mean_error` is the mean over the kinds (the extra ones apart), of each over its severities and
    seeds; `families` are such means of each family. `relative_error` compares with the first
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
    """{kind: error} -> {family: the mean}"""
    families = defaultdict(list)
    for corruption in COMMON_CORRUPTIONS:
        if corruption.name in errors:
            families[corruption.family].append(errors[corruption.name])
    return {family: float(np.mean(values)) for family, values in families.items()}


def mean_relative_error(
    errors: Mapping[str, float], reference: Mapping[str, float]
) -> float | None:
    """The mean over the kinds of the ratio of the errors."""
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
