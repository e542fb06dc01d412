"""Trained models for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from patchwords.api.runs import ModelSource, get_source
from patchwords.device import choose_device
from patchwords.errors import ConfigError, did_you_mean
from patchwords.evaluation.predictions import load_model_on_device
from patchwords.export.comparison import (
    Export,
    compare_accuracy,
    find_recorded_images,
    load_comparison_photos,
    select_calibration_images,
)
from patchwords.export.onnx import DEFAULT_OPSET
from patchwords.export.write import check_export_target, export_model
from patchwords.training.model_setup import parse_image_size
from patchwords.weights.adapt import adapt_model
from patchwords.weights.pretrained import Pretrained

EXPORT_SUFFIXES = {"onnx": ".onnx", "openvino": ".xml"}


def export(
    model: ModelSource,
    file: str | Path,
    *,
    to: Literal["auto", "onnx", "openvino"] = "auto",
    quantize: Literal["none", "int8"] = "none",
    calibrate: str | Path | None = None,
    image_size: int | Sequence[int] | None = None,
    opset: int = DEFAULT_OPSET,
    overwrite: bool = False,
) -> Export:
    """Write a model as ONNX or OpenVINO, compared with PyTorch before it is put in place.

    Args:
        model: a run, a folder or a published name.
        file: NAME.onnx, or NAME.xml for OpenVINO.
        to: the format; default: by the end of the name.
        quantize: int8 rounds the weights of matrix products.
        calibrate: labelled data to compare the accuracy of PyTorch and of the file on.
        image_size: one number, or height and width; positions are resized to it.
        opset: version of ONNX's operators, 18 to 23.
        overwrite: write over an existing file.
    """
    path = Path(file)
    check_export_settings(path, to, opset, overwrite)
    loaded = load_model_on_device(get_source(model), choose_device("cpu", "fp32"))
    source = loaded.source if image_size is None else resize_source(loaded.source, image_size)
    source.require_classes(loaded.name)
    examples = None
    if calibrate is not None:
        examples = select_calibration_images(source, loaded.folder, str(calibrate))
    written = export_model(
        source,
        path,
        int8=quantize == "int8",
        opset=opset,
        overwrite=overwrite,
        photos=load_comparison_photos(source, examples or find_recorded_images(loaded.folder)),
    )
    accuracy = None if examples is None else compare_accuracy(source, path, examples)
    return Export(source, written, accuracy)


def check_export_settings(path: Path, to: str, opset: int, overwrite: bool) -> None:
    """Raise ConfigError for settings that do not fit the file, before the model is loaded."""
    engine = check_export_target(path, overwrite=overwrite, opset=opset)
    if to not in ("auto", engine):
        if to not in EXPORT_SUFFIXES:
            raise ConfigError(f"--to {to!r} is not a choice{did_you_mean(to, EXPORT_SUFFIXES)}")
        raise ConfigError(f"--to {to} writes NAME{EXPORT_SUFFIXES[to]}, and {path} ends otherwise")
    if engine == "openvino" and opset != DEFAULT_OPSET:
        raise ConfigError(f"--opset {opset} is for ONNX: OpenVINO has its own operators")


def resize_source(source: Pretrained, image_size: int | Sequence[int]) -> Pretrained:
    """The model for images of another size."""
    sizes = (image_size,) if isinstance(image_size, int) else tuple(image_size)
    size = parse_image_size(sizes)
    model, changes = adapt_model(source.model, image_size=size)
    return replace(
        source,
        model=model.eval(),
        preprocess=replace(source.preprocess, image_size=size),
        changes=(*source.changes, *changes),
    )
