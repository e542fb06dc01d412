"""`patchwords export RUN FILE`: a trained model for ONNX Runtime or OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from torch import Tensor, nn

    from patchwords.data.dataset import ImageDataset
    from patchwords.export.write import ExportedFiles
    from patchwords.weights.pretrained import Pretrained

NUM_COMPARED_PHOTOS = 8  # to compare on, beside noise


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
    from patchwords.export.write import export_model

    check_export_options(config)
    source = open_export_source(config)
    examples = select_calibration_images(config, source)
    written = export_model(
        source,
        config.file,
        int8=config.quantize == "int8",
        opset=config.opset,
        overwrite=config.overwrite,
        photos=load_comparison_photos(source, examples or find_recorded_images(config)),
    )
    print_export(config, source, written)
    if examples is not None:
        print_accuracy_change(config, source, examples)
    print_example_program(config, source)
    return 0


def check_export_options(config: ExportCommand) -> None:
    """Refuse contradictory flags before the model is loaded."""
    from patchwords.errors import ConfigError
    from patchwords.export.onnx import DEFAULT_OPSET
    from patchwords.export.write import check_export_target

    engine = check_export_target(config.file, overwrite=config.overwrite, opset=config.opset)
    if config.to not in ("auto", engine):
        suffix = {"onnx": ".onnx", "openvino": ".xml"}[config.to]
        raise ConfigError(f"--to {config.to} writes NAME{suffix}, and {config.file} ends otherwise")
    if engine == "openvino" and config.opset != DEFAULT_OPSET:
        raise ConfigError(f"--opset {config.opset} is for ONNX: OpenVINO has its own operators")


def open_export_source(config: ExportCommand) -> Pretrained:
    from patchwords.weights.store import from_pretrained

    size = config.image_size
    if size is not None and len(size) == 1:
        size = size * 2
    source = from_pretrained(config.model, image_size=size)
    source.require_classes(config.model)
    for line in source.changes:
        print(f"note: {line}")
    return source


def select_calibration_images(config: ExportCommand, source: Pretrained) -> ImageDataset | None:
    """Select the images of --calibrate that the run was not trained on."""
    from patchwords.data.open import open_data
    from patchwords.evaluation.held_out import map_to_model_labels, read_run_splits, select_held_out

    if config.calibrate is None:
        return None
    data = open_data(config.calibrate, need_labels=False)
    examples = select_held_out(data, read_run_splits(Path(config.model))).examples
    return map_to_model_labels(examples, source.labels, config.calibrate)


def find_recorded_images(config: ExportCommand) -> ImageDataset | None:
    """Find the images of the run's data, if they are still there."""
    from patchwords.data.dataset import concatenate_datasets
    from patchwords.data.open import open_data
    from patchwords.errors import PatchwordsError
    from patchwords.training.config import read_config_yaml
    from patchwords.training.logs.run_folder import RunFolder

    run_folder = RunFolder(Path(config.model))
    if not run_folder.config.is_file():
        return None
    try:
        data = str(read_config_yaml(run_folder.config)["data"])
        if data != "digits" and not Path(data).exists():  # nothing is fetched from the network
            return None
        return concatenate_datasets(list(open_data(data, need_labels=False).splits.values()))
    except (PatchwordsError, KeyError):  # then noise is compared
        return None


def load_comparison_photos(source: Pretrained, examples: ImageDataset | None) -> Tensor | None:
    """Load a few images, evenly spread: uint8 [B, C, H, W]."""
    import numpy as np

    from patchwords.data.loader import load_eval_batches

    if not examples:
        return None
    chosen = np.unique(np.linspace(0, len(examples) - 1, NUM_COMPARED_PHOTOS).astype(int))
    batch = next(
        iter(load_eval_batches(examples.select(chosen), source.preprocess, NUM_COMPARED_PHOTOS))
    )
    return batch.images if len(batch.indices) else None


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


def print_accuracy_change(
    config: ExportCommand, source: Pretrained, examples: ImageDataset
) -> None:
    """Print both accuracies, and how many predictions differ."""
    from patchwords.export.runtime import open_exported_model

    before = evaluate_on_cpu(source, source.model, examples)
    after = evaluate_on_cpu(source, open_exported_model(config.file).model, examples)
    images = before["evaluation"]["images"]
    print(f"accuracy on {images:,} held-out images of {config.calibrate}:")
    for name, outcome in (("PyTorch", before), (str(config.file), after)):
        accuracy = outcome["evaluation"]["accuracy"]
        print(
            f"  {name}: {accuracy['value']:.2%} (95 % interval {accuracy['low']:.2%} to "
            f"{accuracy['high']:.2%})"
        )
    changed = int((before["answers"] != after["answers"]).sum())
    print(f"  {changed:,} of {images:,} images get another prediction")


def evaluate_on_cpu(source: Pretrained, model: nn.Module, examples: ImageDataset) -> dict[str, Any]:
    from patchwords.data.loader import choose_num_workers
    from patchwords.device import choose_device
    from patchwords.evaluation.held_out import evaluate_predictions, predict_examples

    device = choose_device("cpu", "fp32")
    predictions = predict_examples(
        model, examples, source.preprocess, device, choose_num_workers(examples)
    )
    return {
        "evaluation": evaluate_predictions(predictions, examples, source.labels, max_bad=0.01),
        "answers": predictions.probabilities.argmax(1),
    }


def print_example_program(config: ExportCommand, source: Pretrained) -> None:
    from patchwords.export.example import write_example_program

    print(f"\nUse it: patchwords predict {config.file} photo.jpg")
    print("or, without patchwords:\n")
    print(write_example_program(config.file, source.preprocess))
