"""What is read off the cells of `data-size`: gaps at both ends, and how they change on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from patchwords.studies.paper.judging import FEWSHOT
from patchwords.studies.study import Numbers

SMALL, LARGE, RESNET = "small ViT", "large ViT", "ResNet"

RESNET_FIRST = "ResNet less large ViT, fewest images"
VIT_LAST = "large ViT less ResNet, most images"
SIZE_FIRST = "small ViT less large ViT, fewest images"
CATCHES_UP = "large ViT gains on ResNet, per doubling"
CATCHES_UP_FEWSHOT = f"{CATCHES_UP}, {FEWSHOT}"
SIZE_PAYS = "large ViT gains on small ViT, per doubling"

Curves = Mapping[str, Mapping[int, float | None]]  # model -> images -> accuracy


def name_of(model: str, images: int) -> str:
    """Of a cell, and of its label.

    >>> name_of("ResNet", 25_000)
    'ResNet, 25,000'
    """
    return f"{model}, {images:,}"


def parts_of(name: str) -> tuple[str, int]:
    """
    >>> parts_of("ResNet, 25,000")
    ('ResNet', 25000)
    """
    model, _, images = name.partition(", ")
    return model, int(images.replace(",", ""))


def read(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    """Every accuracy, and what lies between the models of one seed.

    Where all is judged by few shots, they take the place of test images.
    """
    tested: dict[str, dict[int, float | None]] = {}
    shown: dict[str, dict[int, float | None]] = {}
    for name in labels.values():
        model, images = parts_of(name)
        accuracy = found[name].get("accuracy")
        tested.setdefault(model, {})[images] = accuracy
        shown.setdefault(model, {})[images] = found[name].get(FEWSHOT, accuracy)
    apart = any(FEWSHOT in found[name] for name in labels.values())
    first, last = min(tested[RESNET]), max(tested[RESNET])
    return {
        **table(tested, ""),
        **(table(shown, f", {FEWSHOT}") if apart else {}),
        RESNET_FIRST: less(tested, RESNET, LARGE)[first],
        VIT_LAST: less(tested, LARGE, RESNET)[last],
        CATCHES_UP: per_doubling(less(tested, LARGE, RESNET)),
        CATCHES_UP_FEWSHOT: per_doubling(less(shown, LARGE, RESNET)),
        SIZE_FIRST: less(tested, SMALL, LARGE)[first],
        SIZE_PAYS: per_doubling(less(tested, LARGE, SMALL)),
    }


def table(curves: Curves, suffix: str) -> dict[str, float | None]:
    return {
        f"{name_of(model, images)}{suffix}": value
        for model, curve in curves.items()
        for images, value in curve.items()
    }


def less(curves: Curves, one: str, other: str) -> dict[int, float | None]:
    """Images -> how far the one model is above the other; None where either diverged."""
    gaps: dict[int, float | None] = {}
    for images, value in curves[one].items():
        beside = curves[other][images]
        gaps[images] = None if value is None or beside is None else value - beside
    return gaps


def per_doubling(gaps: Mapping[int, float | None]) -> float | None:
    """The slope over the doublings of images, by least squares; None where one is missing."""
    values = [value for value in gaps.values() if value is not None]
    if len(values) < len(gaps):
        return None
    return float(np.polyfit(np.log2(list(gaps)), values, 1)[0])
