"""timm's pretrained_cfg: how images are cut and scaled, from and to `Preprocess`.

Source: transforms_imagenet_eval in data/transforms_factory.py of timm 1.0. Its crop resizes the
image to floor(size / crop_pct) at the short side and takes the centre out of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from patchwords.data.preprocess import Preprocess

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # where cfg is silent


def preprocess_from_timm(
    cfg: Mapping[str, Any], image_size: tuple[int, int], channels: int
) -> tuple[Preprocess, list[str]]:
    """The preprocessing for images of (H, W); and what is not quite as told. Raises ConfigError."""
    percent = float(cfg.get("crop_pct") or 0.875)
    mode = cfg.get("crop_mode") or "center"
    interpolation = cfg.get("interpolation") or "bicubic"
    notes = []
    if interpolation not in ("bilinear", "bicubic"):
        notes.append(f"interpolation {interpolation!r} is not offered here: bicubic is taken")
        interpolation = "bicubic"
    whole = math.floor(image_size[0] / percent)
    if mode == "border" or (mode == "squash" and percent < 1):
        notes.append(f"crop_mode {mode!r} with crop_pct {percent} is read as a centre crop")
        mode = "center"
    preprocess = Preprocess(
        image_size=image_size,
        resize="squash" if mode == "squash" else "crop",
        crop_fraction=image_size[0] / max(whole, image_size[0]),
        interpolation=interpolation,  # type: ignore[arg-type]
        mean=expand_to_channels(cfg.get("mean") or IMAGENET_MEAN, channels),
        std=expand_to_channels(cfg.get("std") or IMAGENET_STD, channels),
        channels=channels,  # type: ignore[arg-type]
    )
    return preprocess, notes


def expand_to_channels(values: Any, channels: int) -> tuple[float, ...]:
    """One value for each channel; of grey images, the mean of those of RGB."""
    numbers = tuple(float(value) for value in values)
    if channels == 1 and len(numbers) > 1:
        return (sum(numbers) / len(numbers),)
    return numbers * channels if len(numbers) == 1 else numbers


def preprocess_to_timm(preprocess: Preprocess) -> dict[str, Any]:
    """The fields that timm.data.resolve_data_config reads the same preprocessing from."""
    height, width = preprocess.image_size
    squash = preprocess.resize == "squash"
    return {
        "input_size": [preprocess.channels, height, width],
        "fixed_input_size": True,
        "interpolation": preprocess.interpolation,
        "crop_pct": 1.0 if squash else compute_crop_pct(height, preprocess.crop_fraction),
        "crop_mode": "squash" if squash else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def compute_crop_pct(side: int, fraction: float) -> float:
    """The number that timm's floor makes the same size of as our rounding does."""
    whole = round(side / fraction)
    percent = side / whole
    # One step of a float can be what floor falls over.
    return percent if math.floor(side / percent) == whole else math.nextafter(percent, 0.0)
