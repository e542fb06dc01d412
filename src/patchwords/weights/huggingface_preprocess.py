"""transformers' image processors: preprocessor_config.json from and to `Preprocess`.

ViTImageProcessor squashes the image to a size; BitImageProcessor resizes the short side and cuts
the centre out. Pixels are rescaled, then normalised: (x * factor - mean) / std.
Source: image_processing_backends.py and models/{vit,bit,deit}/image_processing_*.py, version 5.23.

They reduce a large photo, from four times the size on, in one step where we take two: scores then
differ in the third digit or so. Else the pixels are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from patchwords.data.crop import Interpolation
from patchwords.data.preprocess import Preprocess, ResizeMode
from patchwords.errors import WeightsError

PROCESSOR_FILE = "preprocessor_config.json"
INTERPOLATION_BY_RESAMPLE: dict[int, Interpolation] = {
    2: "bilinear",
    3: "bicubic",
}  # Pillow's numbers
HALF_RGB = [0.5, 0.5, 0.5]
# What each class does where its file is silent.
PROCESSOR_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2, "image_mean": HALF_RGB, "image_std": HALF_RGB},
    "DeiT": {
        "size": 256,
        "crop_size": 224,
        "do_center_crop": True,
        "resample": 3,
        "image_mean": HALF_RGB,
        "image_std": HALF_RGB,
    },
    "Bit": {
        "size": {"shortest_edge": 224},
        "crop_size": 224,
        "do_center_crop": True,
        "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],  # CLIP's
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
}


def preprocess_from_huggingface(
    table: Mapping[str, Any], image_size: tuple[int, int], channels: int
) -> tuple[Preprocess, list[str]]:
    """The preprocessing that the table tells, for images of (H, W); and what is not quite as told.

    Raises WeightsError, or ConfigError for values that no image can have.
    """
    kind = str(table.get("image_processor_type") or table.get("feature_extractor_type") or "ViT")
    kind = re.sub(r"(ImageProcessor\w*|FeatureExtractor)$", "", kind)
    notes = []
    if kind not in PROCESSOR_DEFAULTS:
        notes.append(f"preprocessing by {kind} is read as if it were that of ViT")
    told = {**PROCESSOR_DEFAULTS.get(kind, PROCESSOR_DEFAULTS["ViT"]), **table}
    if kind == "Bit" and isinstance(told["size"], int):  # a single number of old was the short side
        told["size"] = {"shortest_edge": told["size"]}
    mean, std = read_mean_std(told, channels)
    resample = told["resample"]
    if resample not in INTERPOLATION_BY_RESAMPLE:
        notes.append(f"resample {resample} (Pillow's number) is not offered here: bicubic is taken")
    resize, fraction, more = read_resize_and_crop(told, image_size)
    preprocess = Preprocess(
        image_size=image_size,
        resize=resize,
        crop_fraction=fraction,
        interpolation=INTERPOLATION_BY_RESAMPLE.get(cast(int, resample), "bicubic"),
        mean=mean,
        std=std,
        channels=channels,  # type: ignore[arg-type]
    )
    return preprocess, notes + more


def read_mean_std(
    told: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixels in [0, 1], whatever the factor they are rescaled by."""
    rescale = float(told.get("rescale_factor", 1 / 255)) if told.get("do_rescale", True) else 1.0
    factor = 255 * rescale  # 1, if pixels come into [0, 1] as they do here
    if abs(factor - 1) < 1e-6:
        factor = 1.0
    if not told.get("do_normalize", True):
        return (0.0,) * channels, (1 / factor,) * channels
    values = []
    for name in ("image_mean", "image_std"):
        value = told[name]
        each = [value] * channels if isinstance(value, int | float) else list(value)
        if channels == 1 and len(set(each)) == 1:
            each = each[:1]
        values.append(tuple(float(one) / factor for one in each))
    return values[0], values[1]


def read_resize_and_crop(
    told: Mapping[str, Any], image_size: tuple[int, int]
) -> tuple[ResizeMode, float, list[str]]:
    """-> resize and crop_fraction of `Preprocess`, and what is not quite as told."""
    size = parse_processor_size(told["size"])
    crop = (
        parse_processor_size(told.get("crop_size") or told["size"])
        if told.get("do_center_crop")
        else None
    )
    notes = []
    final = crop or size
    if "height" in final and (final["height"], final["width"]) != image_size:
        notes.append(
            f"the processor makes images of {final['height']}x{final['width']}, the model takes "
            f"{image_size[0]}x{image_size[1]}: they are made of that size"
        )
    if not told.get("do_resize", True):
        return (
            "squash",
            1.0,
            [*notes, "the processor does not resize images: here it squashes them"],
        )
    if "height" in size and crop in (None, size):
        return "squash", 1.0, notes
    if "height" in size:
        notes.append(
            f"the processor squashes images to {size['height']}x{size['width']} and cuts the "
            "centre out: here their aspect ratio is kept"
        )
    elif crop is None or len(set(crop.values())) > 1:
        notes.append("the processor fits the short side of images: here they fill the whole size")
    cut, whole = (one.get("shortest_edge") or one["height"] for one in (final, size))
    return "crop", min(cut / whole, 1.0), notes


def parse_processor_size(size: Any) -> dict[str, int]:
    """{"height", "width"} or {"shortest_edge"}, from any way that was ever in use."""
    if isinstance(size, int):
        return {"height": size, "width": size}
    if isinstance(size, list) and len(size) == 2:
        return {"height": size[0], "width": size[1]}
    if isinstance(size, dict):
        for keys in (("height", "width"), ("shortest_edge",)):
            if all(isinstance(size.get(key), int) and size[key] > 0 for key in keys):
                return {key: size[key] for key in keys}
    raise WeightsError(
        f"{PROCESSOR_FILE}: size {size!r} is neither height and width nor shortest_edge"
    )


def preprocess_to_huggingface(preprocess: Preprocess) -> dict[str, Any]:
    """The processor that does the same. Raises WeightsError for a crop that none of them knows."""
    height, width = preprocess.image_size
    table: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": next(
            k for k, name in INTERPOLATION_BY_RESAMPLE.items() if name == preprocess.interpolation
        ),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
        "do_convert_rgb": preprocess.channels == 3,
    }
    if preprocess.resize == "squash":
        return table
    if height != width:
        raise WeightsError(
            f"transformers has no processor that cuts {height}x{width} out of the centre: use "
            "square images, or preprocessing with resize 'squash'"
        )
    return table | {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": round(height / preprocess.crop_fraction)},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
    }
