"""What axial attention is compared by: accuracies, speeds, and the time for a multiplication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from patchwords.studies.study import TrialMetrics

# The labels are the same at both scales: patches of 8 and 4 pixels of 32, of 32 and 16 of 224.
VIT_LARGE_PATCHES, VIT_SMALL_PATCHES = "ViT, large patches", "ViT, small patches"
AXIAL_LARGE_PATCHES, AXIAL_SMALL_PATCHES = "Axial-ViT, large patches", "Axial-ViT, small patches"
DEEPER_VIT = "ViT, small patches, deeper"
RESNET, AXIAL_RESNET = "ResNet", "AxialResNet"
SPEED_TRIAL = "speed"  # the cell that takes the time of all the others, in turn
TIMED_BATCH = 32  # at a time, of those that are timed
MODELS = (
    VIT_LARGE_PATCHES,
    VIT_SMALL_PATCHES,
    DEEPER_VIT,
    AXIAL_LARGE_PATCHES,
    AXIAL_SMALL_PATCHES,
    RESNET,
    AXIAL_RESNET,
)
SLOWDOWN_PER_MAC = "AxialResNet: time per MAC beside ResNet's, in doublings"


def make_rate_label(name: str) -> str:
    return f"{name}: images/s"


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Accuracies, speeds, and how much slower AxialResNet is than its multiplications say."""
    clock = found[SPEED_TRIAL]
    return {
        **{label: found[name].get("accuracy") for label, name in labels.items()},
        **{make_rate_label(label): clock[make_rate_label(name)] for label, name in labels.items()},
        SLOWDOWN_PER_MAC: compute_slowdown(found),
    }


def compute_slowdown(found: Mapping[str, TrialMetrics]) -> float | None:
    """log2 of the time for a multiplication, over that of the ResNet."""
    pace = []  # multiplications a second
    for name in (RESNET, AXIAL_RESNET):
        macs, rate = compute_macs_per_image(found[name]), found[SPEED_TRIAL][make_rate_label(name)]
        if macs is None or rate is None:
            return None
        pace.append(macs * rate)
    return math.log2(pace[0] / pace[1])


def compute_macs_per_image(numbers: Mapping[str, Any]) -> float | None:
    """Of an image; a training step takes 6 FLOPs for each."""
    flops, images = numbers.get("flops"), numbers.get("images")
    return flops / images / 6 if flops and images else None
