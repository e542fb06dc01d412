"""The table of corruptions, what a severity does to a batch, and the mean error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from patchwords.data.preprocess import Preprocess
from patchwords.device import choose_device
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness.corruptions import (
    COMMON_CORRUPTIONS,
    CORRUPTION_PERTURBATIONS,
    STANDARD_CORRUPTION_NAMES,
    summarise_corruptions,
)
from patchwords.evaluation.robustness.perturbation import Perturbation, PerturbationBatch
from patchwords.models.build import build_model
from patchwords.models.config import ViTConfig
from patchwords.weights.pretrained import Pretrained


def batch(size: int, channels: int = 3, count: int = 2) -> PerturbationBatch:
    """Smooth pictures with a little noise: what corruptions were made for."""
    own = torch.Generator().manual_seed(3)
    coarse = torch.rand(count, channels, 7, 7, generator=own)
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1)
    images = (smooth * 235 + 20 * torch.rand(smooth.shape, generator=own)).byte()
    model = build_model(
        ViTConfig(4, 4, 1, 1, 4, image_size=(8, 8), channels=channels, num_classes=2)
    )
    preprocess = Preprocess((size, size), channels=channels)  # type: ignore[arg-type]
    subject = LoadedModel(
        "model", Pretrained(model, preprocess, ("a", "b")), choose_device("cpu"), 0
    )
    indices = list(range(11, 11 + count))
    return PerturbationBatch(images, torch.zeros(count, dtype=torch.int64), indices, subject)


def test_the_kinds_are_those_of_imagenet_c_without_its_weather() -> None:
    names = {corruption.name for corruption in COMMON_CORRUPTIONS}
    assert {name.split("-")[0] for name in STANDARD_CORRUPTION_NAMES} == {
        "noise",
        "blur",
        "digital",
        "weather",
    }
    assert len(names) == len(COMMON_CORRUPTIONS) == 14
    assert names - set(STANDARD_CORRUPTION_NAMES) == {"extra-speckle-noise", "extra-gaussian-blur"}
    assert [found.name for found in CORRUPTION_PERTURBATIONS if not found.usual] == sorted(
        names - set(STANDARD_CORRUPTION_NAMES), reverse=True
    )


@pytest.mark.parametrize("corruption", COMMON_CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_numbers_are_those_of_the_nearest_size(corruption: Any) -> None:
    for size, wanted in {
        (16, 16): corruption.at_32,
        (45, 90): corruption.at_32,
        (46, 300): corruption.at_64,
        (119, 119): corruption.at_64,
        (120, 120): corruption.at_224,
        (384, 384): corruption.at_224,
    }.items():
        assert corruption.numbers(size) is wanted
        assert len(wanted) == 5


def test_a_single_number_rises_or_falls_with_the_severity() -> None:
    for corruption in COMMON_CORRUPTIONS:
        for numbers in (corruption.at_32, corruption.at_64, corruption.at_224):
            if len(numbers[0]) == 1:
                values = [value for [value] in numbers]
                assert values in (sorted(set(values)), sorted(set(values), reverse=True))


@pytest.mark.parametrize("size", [16, 67, 131])
@pytest.mark.parametrize("disturbance", CORRUPTION_PERTURBATIONS, ids=lambda found: found.name)
def test_every_severity_gives_an_image_and_the_last_is_worse(
    disturbance: Perturbation, size: int
) -> None:
    asked = batch(size, channels=1 if size == 67 else 3)
    assert disturbance.change is not None
    away = []
    for level in (disturbance.levels[0], disturbance.levels[-1]):
        found = disturbance.change(asked, level, 0)
        assert found.shape == asked.images.shape
        assert found.dtype == torch.uint8
        away.append((found.float() - asked.images.float()).square().mean().item())
    assert away[1] > 0
    if disturbance.name != "digital-elastic":  # whose first severities move the corners most
        assert away[1] > away[0]


def test_the_same_seed_gives_the_same_image_and_another_does_not() -> None:
    whole = batch(16, count=3)
    alone = PerturbationBatch(
        whole.images[1:2], whole.labels[1:2], whole.indices[1:2], whole.loaded
    )
    for disturbance in CORRUPTION_PERTURBATIONS:
        assert disturbance.change is not None
        level = disturbance.levels[-1]
        found = disturbance.change(whole, level, 7)
        assert torch.equal(found[1:2], disturbance.change(alone, level, 7)), disturbance.name
        same = torch.equal(found, disturbance.change(whole, level, 8))
        assert same is not disturbance.seeds, disturbance.name


def test_one_colour_stays_to_the_level_in_all_that_only_mixes_pixels() -> None:
    """Rounded down, many levels would become one less."""
    asked = batch(16)
    mixing = [found for found in CORRUPTION_PERTURBATIONS if found.family == "blur"]
    for level in range(0, 256, 17):
        flat = torch.full_like(asked.images, level)
        for disturbance in mixing:
            assert disturbance.change is not None
            found = disturbance.change(
                PerturbationBatch(flat, asked.labels, [3, 5], asked.loaded), 5.0, 0
            )
            assert torch.equal(found, flat), (disturbance.name, level)


def rows(model: str, errors: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Errors of the first severities, each with two seeds that differ by 0.02."""
    found: list[dict[str, Any]] = []
    for kind, values in errors.items():
        found.append({"model": model, "disturbance": kind, "level": 0.0, "accuracy": 0.99})
        for level, error in enumerate(values, 1):
            for off in (-0.01, 0.01):
                row = {"model": model, "disturbance": kind, "level": float(level)}
                found.append({**row, "accuracy": 1 - error - off})
    return found


def test_the_mean_error_weighs_kinds_alike_and_compares_with_the_first_model() -> None:
    measured = [
        *rows("a", {"noise-shot": [0.1, 0.3], "noise-gaussian": [0.4], "blur-zoom": [0.5]}),
        *rows("a", {"extra-gaussian-blur": [1.0], "occlusion-random": [1.0]}),
        *rows("b", {"noise-shot": [0.1, 0.1], "noise-gaussian": [0.8], "blur-zoom": [0.75]}),
    ]
    found = summarise_corruptions(measured)
    assert list(found) == ["a", "b"]
    assert found["a"]["mean_error"] == pytest.approx((0.2 + 0.4 + 0.5) / 3)
    assert found["b"]["mean_error"] == pytest.approx((0.1 + 0.8 + 0.75) / 3)
    assert found["a"]["families"] == pytest.approx({"noise": 0.3, "blur": 0.5})
    assert found["a"]["relative_error"] == pytest.approx(1)
    assert found["b"]["relative_error"] == pytest.approx((0.5 + 2 + 1.5) / 3)


def test_without_corruptions_there_is_no_mean_and_without_errors_no_ratio() -> None:
    assert summarise_corruptions(rows("a", {"occlusion-random": [0.3]})) == {}
    perfect = rows("a", {"noise-shot": [0.01]})[:2]  # accuracy 1
    [summary] = summarise_corruptions(perfect).values()
    assert summary["relative_error"] is None
