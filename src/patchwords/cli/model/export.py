"""`patchwords export RUN FILE`: a trained model for ONNX Runtime or OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from patchwords.export.write import ExportedFiles
    from patchwords.weights.pretrained import Pretrained


@dataclass(frozen=True)
class ExportCommand:
    """Write a trained model as ONNX or OpenVINO, for programs without PyTorch.

    The file is compared with PyTorch first, and refused if a logit differs by 1e-4. Class names and
    preprocessing are stored inside: `patchwords predict FILE` needs nothing else.

    Example: patchwords export runs/photos photos.onnx
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """run folder or model folder"""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """file to write: NAME.onnx, or NAME.xml for OpenVINO, which writes NAME.bin next to it"""
    to: Literal["auto", "onnx", "openvino"] = "auto"
    """format; auto: by the suffix of FILE"""
    quantize: Literal["none", "int8"] = "none"
    """int8: round the weights of matrix products, for a quarter of the size and slightly different
    predictions"""
    calibrate: str | None = None
    """labelled DATA to compare the accuracy of PyTorch and of the file on; default: none"""
    image_size: tuple[int, ...] | None = None
    """image size in pixels: one number, or height and width; positions are resized to it; default:
    the model's own"""
    opset: int = 20
    """version of ONNX's operators, 18 to 23; older programs need a lower one"""
    overwrite: bool = False
    """overwrite an existing FILE"""


def run_export(config: ExportCommand) -> int:
    from patchwords.api.models import export
    from patchwords.errors import escape_control_characters

    exported = export(
        config.model,
        config.file,
        to=config.to,
        quantize=config.quantize,
        calibrate=config.calibrate,
        image_size=config.image_size,
        opset=config.opset,
        overwrite=config.overwrite,
    )
    for line in exported.source.changes:
        print(escape_control_characters(f"note: {line}"))
    print_export(config, exported.source, exported.written)
    if exported.accuracy is not None:
        print_accuracy_change(config, exported.accuracy)
    print_example_program(config, exported.source)
    return 0


def print_export(config: ExportCommand, source: Pretrained, written: ExportedFiles) -> None:
    height, width = source.preprocess.image_size
    print(
        f"{' and '.join(map(str, written.files))}: {written.bytes / 1e6:,.1f} MB; images "
        f"[batch, {source.preprocess.channels}, {height}, {width}] -> logits "
        f"[batch, {len(source.labels)}]"
    )
    scale = f"(logits up to {written.difference.scale:.2g})"
    if written.quantized is None:
        print(f"largest difference from PyTorch: {written.difference.largest:.1e} {scale}")
        return
    print(
        f"largest difference from PyTorch: {written.difference.largest:.1e} in float32, "
        f"{written.quantized.largest:.1e} in int8 {scale}"
    )
    if config.calibrate is None:
        print("the accuracy of int8 is not measured; --calibrate DATA does that")


def print_accuracy_change(config: ExportCommand, compared: dict[str, Any]) -> None:
    """Print both accuracies, and how many predictions differ."""
    print(f"accuracy on {compared['images']:,} held-out images of {config.calibrate}:")
    for name, accuracy in (("PyTorch", compared["pytorch"]), (str(config.file), compared["file"])):
        print(
            f"  {name}: {accuracy['value']:.2%} (95 % interval {accuracy['low']:.2%} to "
            f"{accuracy['high']:.2%})"
        )
    print(f"  {compared['changed']:,} of {compared['images']:,} images get another prediction")


def print_example_program(config: ExportCommand, source: Pretrained) -> None:
    from patchwords.export.example import write_example_program

    print(f"\nUse it: patchwords predict {config.file} photo.jpg")
    print("or, without patchwords:\n")
    print(write_example_program(config.file, source.preprocess))
