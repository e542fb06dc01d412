"""What axial attention is compared by: accuracies, speeds, and the time for a multiplication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from patchwords.studies.study import Numbers

# The labels are the same at both scales: patches of 8 and 4 pixels of 32, of 32 and 16 of 224.
VIT_FEW, VIT_MANY = "ViT, large patches", "ViT, small patches"
AXIAL_FEW, AXIAL_MANY = "Axial-ViT, large patches", "Axial-ViT, small patches"
DEEP = "ViT, small patches, deeper"
RESNET, AXIAL_RESNET = "ResNet", "AxialResNet"
CLOCK = "speed"  # the cell that takes the time of all the others, in turn
IMAGES = 32  # at a time, of those that are timed
MODELS = (VIT_FEW, VIT_MANY, DEEP, AXIAL_FEW, AXIAL_MANY, RESNET, AXIAL_RESNET)
SLOWER = "AxialResNet: time per MAC beside ResNet's, in doublings"


def rate_of(name: str) -> str:
    return f"{name}: images/s"


def read(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    """Accuracies, speeds, and how much slower AxialResNet is than its multiplications say."""
    clock = found[CLOCK]
    return {
        **{label: found[name].get("accuracy") for label, name in labels.items()},
        **{rate_of(label): clock[rate_of(name)] for label, name in labels.items()},
        SLOWER: slower(found),
    }


def slower(found: Mapping[str, Numbers]) -> float | None:
    """log2 of the time for a multiplication, over that of the ResNet."""
    pace = []  # multiplications a second
    for name in (RESNET, AXIAL_RESNET):
        macs, rate = macs_of(found[name]), found[CLOCK][rate_of(name)]
        if macs is None or rate is None:
            return None
        pace.append(macs * rate)
    return math.log2(pace[0] / pace[1])


def macs_of(numbers: Mapping[str, Any]) -> float | None:
    """Of an image; a training step takes 6 FLOPs for each."""
    flops, images = numbers.get("flops"), numbers.get("images")
    return flops / images / 6 if flops and images else None
