"""What is read off the cells of `data-size`: gaps at both ends, and how they change on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from patchwords.studies.paper.judging import FEWSHOT_LABEL
from patchwords.studies.study import TrialMetrics

SMALL_VIT_NAME, LARGE_VIT_NAME, RESNET_NAME = "small ViT", "large ViT", "ResNet"

RESNET_LEAD_FEWEST_IMAGES = "ResNet less large ViT, fewest images"
VIT_LEAD_MOST_IMAGES = "large ViT less ResNet, most images"
SMALL_VIT_LEAD_FEWEST_IMAGES = "small ViT less large ViT, fewest images"
VIT_GAIN = "large ViT gains on ResNet, per doubling"
VIT_GAIN_FEWSHOT = f"{VIT_GAIN}, {FEWSHOT_LABEL}"
LARGE_VIT_GAIN = "large ViT gains on small ViT, per doubling"

AccuracyByImages = Mapping[str, Mapping[int, float | None]]  # model -> images -> accuracy


def make_data_size_label(model: str, images: int) -> str:
    """Of a cell, and of its label.

    >>> make_data_size_label("ResNet", 25_000)
    'ResNet, 25,000'
    """
    return f"{model}, {images:,}"


def parse_data_size_label(name: str) -> tuple[str, int]:
    """
    >>> parse_data_size_label("ResNet, 25,000")
    ('ResNet', 25000)
    """
    model, _, images = name.partition(", ")
    return model, int(images.replace(",", ""))


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Every accuracy, and what lies between the models of one seed.

    Where all is judged by few shots, they take the place of test images.
    """
    tested: dict[str, dict[int, float | None]] = {}
    shown: dict[str, dict[int, float | None]] = {}
    for name in labels.values():
        model, images = parse_data_size_label(name)
        accuracy = found[name].get("accuracy")
        tested.setdefault(model, {})[images] = accuracy
        shown.setdefault(model, {})[images] = found[name].get(FEWSHOT_LABEL, accuracy)
    apart = any(FEWSHOT_LABEL in found[name] for name in labels.values())
    first, last = min(tested[RESNET_NAME]), max(tested[RESNET_NAME])
    return {
        **build_label_table(tested, ""),
        **(build_label_table(shown, f", {FEWSHOT_LABEL}") if apart else {}),
        RESNET_LEAD_FEWEST_IMAGES: subtract_accuracies(tested, RESNET_NAME, LARGE_VIT_NAME)[first],
        VIT_LEAD_MOST_IMAGES: subtract_accuracies(tested, LARGE_VIT_NAME, RESNET_NAME)[last],
        VIT_GAIN: fit_gain_per_doubling(subtract_accuracies(tested, LARGE_VIT_NAME, RESNET_NAME)),
        VIT_GAIN_FEWSHOT: fit_gain_per_doubling(
            subtract_accuracies(shown, LARGE_VIT_NAME, RESNET_NAME)
        ),
        SMALL_VIT_LEAD_FEWEST_IMAGES: subtract_accuracies(tested, SMALL_VIT_NAME, LARGE_VIT_NAME)[
            first
        ],
        LARGE_VIT_GAIN: fit_gain_per_doubling(
            subtract_accuracies(tested, LARGE_VIT_NAME, SMALL_VIT_NAME)
        ),
    }


def build_label_table(curves: AccuracyByImages, suffix: str) -> dict[str, float | None]:
    return {
        f"{make_data_size_label(model, images)}{suffix}": value
        for model, curve in curves.items()
        for images, value in curve.items()
    }


def subtract_accuracies(curves: AccuracyByImages, one: str, other: str) -> dict[int, float | None]:
    """Images -> how far the one model is above the other; None where either diverged."""
    gaps: dict[int, float | None] = {}
    for images, value in curves[one].items():
        beside = curves[other][images]
        gaps[images] = None if value is None or beside is None else value - beside
    return gaps


def fit_gain_per_doubling(gaps: Mapping[int, float | None]) -> float | None:
    """The slope over the doublings of images, by least squares; None where one is missing."""
    values = [value for value in gaps.values() if value is not None]
    if len(values) < len(gaps):
        return None
    return float(np.polyfit(np.log2(list(gaps)), values, 1)[0])
