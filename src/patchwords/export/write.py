"""Export of a model to a file that is verified against PyTorch before it is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.export.metadata import ExportMetadata
from patchwords.export.onnx import (
    DEFAULT_OPSET,
    LogitDifference,
    check_opset,
    compare_logits,
    make_random_batches,
    quantize_onnx,
    write_onnx,
    write_openvino,
)
from patchwords.export.runtime import (
    ENGINE_SUFFIXES,
    EngineName,
    import_export_package,
    open_exported_model,
)
from patchwords.files import explain_write_error
from patchwords.models.resnet.config import ResNetConfig
from patchwords.weights.pretrained import Pretrained

EXPORT_PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}


@dataclass(frozen=True)
class ExportedFiles:
    """Files that `export_model` wrote, and how far they differ from PyTorch."""

    files: tuple[Path, ...]
    difference: LogitDifference  # in float32
    quantized: LogitDifference | None  # of the int8 file

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def export_model(
    source: Pretrained,
    path: Path,
    *,
    int8: bool = False,
    opset: int = DEFAULT_OPSET,
    overwrite: bool = False,
    photos: Tensor | None = None,
) -> ExportedFiles:
    """Export the model to `path`: .onnx, or .xml for OpenVINO.

    The file is compared with PyTorch in float32, on noise and on `photos` (uint8 [B, C, H, W]), and
    is kept only if the logits agree to 1e-4. Raises ConfigError for settings that cannot be
    exported, WeightsError for logits that differ. The model is moved to the CPU.
    """
    engine = check_export_target(path, overwrite=overwrite, opset=opset)
    if int8:
        check_int8_export(source, engine)
    card = ExportMetadata(source.labels, source.preprocess, source.architecture)
    model = source.model.cpu().eval()
    batches = make_random_batches(source.preprocess)
    if photos is not None:
        batches.append(source.preprocess.normalise(photos))
    with make_working_folder(path) as folder:
        first = folder / f"{path.stem}-float32.onnx" if int8 else folder / path.name
        if engine == "openvino":
            write_onnx(model, card, folder / "model.onnx", opset)
            write_openvino(folder / "model.onnx", card, first)
        else:
            write_onnx(model, card, first, opset)
        difference = compare_logits(model, open_exported_model(first).model, batches)
        difference.refuse_large(f"the file for {path}")
        rounded = None
        if int8:
            rounded_card = ExportMetadata(card.labels, card.preprocess, card.architecture, "int8")
            quantize_onnx(first, folder / path.name, rounded_card)
            rounded = compare_logits(model, open_exported_model(folder / path.name).model, batches)
        return ExportedFiles(move_exported_files(folder, path), difference, rounded)


def check_export_target(path: Path, *, overwrite: bool, opset: int = DEFAULT_OPSET) -> EngineName:
    """Choose the engine by the suffix; raise ConfigError before any work is done."""
    engine = ENGINE_SUFFIXES.get(path.suffix.lower())
    if engine is None:
        raise ConfigError(f"{path}: the name must end in .onnx, or in .xml for OpenVINO")
    check_opset(opset)
    for file in list_export_files(path):
        if file.exists() and (file.is_dir() or not overwrite):
            raise ConfigError(f"{file} exists; add --overwrite, or choose another name")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist; make it first")
    for package in EXPORT_PACKAGES[engine]:
        import_export_package(package)
    return engine


def check_int8_export(source: Pretrained, engine: EngineName) -> None:
    if engine == "openvino":
        raise ConfigError(
            "int8 is for ONNX: OpenVINO's own needs NNCF, which patchwords does without; "
            "write a .onnx, which OpenVINO can read, too"
        )
    if isinstance(source.model.config, ResNetConfig):
        raise ConfigError(
            "int8 is for the matrix products of a Transformer, and a ResNet is made of "
            "convolutions: leave --quantize out"
        )


def list_export_files(path: Path) -> tuple[Path, Path]:
    """List the file and its weights file (for .onnx only beyond 2 GB)."""
    if path.suffix.lower() == ".xml":
        return path, path.with_suffix(".bin")
    return path, path.with_name(f"{path.name}.data")


@contextlib.contextmanager
def make_working_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder next to the target, on the same disk."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise explain_write_error(error, path) from error
    try:
        yield folder
    except OSError as error:
        raise explain_write_error(error, path) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_exported_files(folder: Path, path: Path) -> tuple[Path, ...]:
    """Move the files to the target, the weights first; return those that exist."""
    main, weights = list_export_files(path)
    made = folder / weights.name
    if made.exists():
        os.replace(made, weights)
    else:
        weights.unlink(missing_ok=True)  # of the file that is written over
    os.replace(folder / main.name, main)
    return (main, weights) if weights.exists() else (main,)
