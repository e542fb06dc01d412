"""Inference with exported files by ONNX Runtime and OpenVINO, on the CPU.

Only built-in operators of the engines run: no library of custom operators is loaded.

Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, WeightsError
from patchwords.export.metadata import (
    INPUT_NAME,
    METADATA_KEYS,
    OUTPUT_NAME,
    PRODUCER,
    ExportMetadata,
)


def import_export_package(name: str) -> Any:
    """Import a package of the extra `export`; raise ConfigError if it cannot be imported."""
    if name == "openvino":
        # openvino sends telemetry over the network unless this package is missing.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigError(
            f"this needs {package}, which cannot be imported ({error}): "
            "pip install 'patchwords[export]'"
        ) from error


EngineName = Literal["onnx", "openvino"]

ENGINE_SUFFIXES: dict[str, EngineName] = {".onnx": "onnx", ".xml": "openvino"}


class OnnxRuntimeModel(nn.Module):
    """An .onnx file that behaves as a module without parameters."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        onnxruntime = import_export_package("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # errors are raised and need not be printed
        try:
            self.session = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime has many error classes
            raise unreadable_model_error(path, error) from error

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes] of normalised images [B, C, H, W]."""
        (logits,) = self.session.run([OUTPUT_NAME], {INPUT_NAME: images.numpy()})
        return torch.from_numpy(logits)

    def strings(self) -> dict[str, str]:
        return dict(self.session.get_modelmeta().custom_metadata_map)

    def shapes(self) -> dict[str, list[Any]]:
        """Return the shape of every input and output; a free axis has a name or None."""
        return {place.name: place.shape for place in self._places()}

    def _places(self) -> list[Any]:
        return [*self.session.get_inputs(), *self.session.get_outputs()]


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux's signal.h."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


@contextlib.contextmanager
def keep_signal_stack() -> Iterator[None]:
    """Put this thread's signal stack back afterwards.

    On CPUs with AMX, OpenVINO puts a smaller one in its place when it compiles a model, and leaves
    a freed one behind when several models are deleted. Any later signal that has a handler, such as
    the end of a data loader's worker, then kills the process.
    """
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), _SignalStack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)


class OpenVinoModel(nn.Module):
    """An .xml file with its .bin that behaves as a module without parameters."""

    def __init__(self, path: Path, bf16: bool = False) -> None:
        super().__init__()
        openvino = import_export_package("openvino")
        if not path.with_suffix(".bin").is_file():
            raise WeightsError(f"{path} lacks its weights: {path.with_suffix('.bin')} is missing")
        settings = {  # by default OpenVINO uses bfloat16 where the CPU has it
            "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        core = openvino.Core()
        try:
            self.model = core.read_model(path)
            with keep_signal_stack():
                self.compiled = core.compile_model(self.model, "CPU", settings)
        except RuntimeError as error:
            raise unreadable_model_error(path, error) from error

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes] of normalised images [B, C, H, W]."""
        return torch.from_numpy(self.compiled({INPUT_NAME: images.numpy()})[OUTPUT_NAME].copy())

    def strings(self) -> dict[str, str]:
        places = {name: [PRODUCER, name] for name in METADATA_KEYS}
        return {
            name: self.model.get_rt_info(place).astype(str)
            for name, place in places.items()
            if self.model.has_rt_info(place)
        }

    def shapes(self) -> dict[str, list[Any]]:
        """Return the shape of every input and output; a free axis is None."""
        return {
            place.any_name: [
                axis.get_length() if axis.is_static else None for axis in place.partial_shape
            ]
            for place in (*self.model.inputs, *self.model.outputs)
        }


@dataclass(frozen=True)
class ExportedModel:
    """An opened exported file: the counterpart of Pretrained."""

    model: OnnxRuntimeModel | OpenVinoModel
    card: ExportMetadata

    @property
    def preprocess(self) -> Preprocess:
        return self.card.preprocess

    @property
    def labels(self) -> tuple[str, ...]:
        return self.card.labels

    def scores(self, images: Tensor) -> np.ndarray:
        """Compute probabilities [B, classes] of images uint8 [B, C, H, W]."""
        return self.model(self.preprocess.normalise(images)).softmax(-1).numpy()


def open_exported_model(path: str | Path, bf16: bool = False) -> ExportedModel:
    """Open a file of `patchwords export` (.onnx, .xml); raise WeightsError for any other.

    `bf16`: OpenVINO computes in bfloat16.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"no file {path}")
    engine = ENGINE_SUFFIXES[path.suffix.lower()]
    model = OnnxRuntimeModel(path) if engine == "onnx" else OpenVinoModel(path, bf16)
    card = ExportMetadata.from_strings(model.strings(), str(path))
    found = model.shapes()
    wanted = {
        INPUT_NAME: [card.preprocess.channels, *card.preprocess.image_size],
        OUTPUT_NAME: [len(card.labels)],
    }
    if {name: shape[1:] for name, shape in found.items()} != wanted:
        raise WeightsError(
            f"{path} is damaged: by its own labels and preprocessing it takes and gives {wanted} "
            f"an image, and in fact {found}"
        )
    return ExportedModel(model, card)


def unreadable_model_error(path: Path, error: Exception) -> WeightsError:
    said = " ".join(str(error).split())[-200:]
    return WeightsError(f"{path} cannot be read: it is damaged, or no such model ({said})")
