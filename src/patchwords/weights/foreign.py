"""What the readers and writers of other projects' folders share: files, fit, refusals.

A folder holds config.json and the tensors, as safetensors or as a pickle that is read as data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.files import explain_write_error, write_atomically
from patchwords.model.family import ModelConfig
from patchwords.weights.adapt import get_tensor_shapes
from patchwords.weights.archive import read_safetensors, read_torch

CONFIG_FILE, TENSORS_FILE = "config.json", "model.safetensors"
# By preference; an index names the parts of weights that are cut into several files.
WEIGHT_FILES = (
    TENSORS_FILE,
    f"{TENSORS_FILE}.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# What reading a damaged table can raise: JSON holds anything where a number should be.
PARSE_ERRORS = (
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RuntimeError,
)
DEFAULT_NUM_CLASSES = (
    1000  # where a file has neither a classifier nor names of classes: as ViTConfig
)


def read_json_table(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table. Raises WeightsError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    if not isinstance(table, dict):
        raise WeightsError(f"{path} is damaged: it holds no table")
    return table


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or those of a folder. Raises WeightsError."""
    if path.is_dir():
        found = [path / name for name in WEIGHT_FILES if (path / name).is_file()]
        if not found:
            raise WeightsError(f"{path} holds no weights: it lacks {' and '.join(WEIGHT_FILES)}")
        path = found[0]
    return read_safetensors(path) if ".safetensors" in path.name else read_torch(path)


def validate_tensors(
    weights: Mapping[str, Tensor], config: ModelConfig, source: Path
) -> dict[str, Tensor]:
    """The tensors, if they are those of the config by name and shape; halves become float32.

    Raises WeightsError with the first that does not fit.
    """
    check_tensor_shapes(weights, config, source)
    for name, value in weights.items():
        if not value.is_floating_point():
            raise WeightsError(f"{source}: {name} is of {value.dtype}; weights are real numbers")
    return {
        name: value.to(torch.promote_types(value.dtype, torch.float32)).contiguous()
        for name, value in weights.items()
    }


def check_tensor_shapes(weights: Mapping[str, Tensor], config: ModelConfig, source: Path) -> None:
    """Raise WeightsError for the first tensor that is not the config's, by name and shape."""
    if config.layers > len(weights):  # before a model of absurd depth is built
        raise WeightsError(f"{source} has {len(weights)} tensors for {config.layers} layers")
    if (misfit := find_shape_mismatch(weights, get_tensor_shapes(config))) is not None:
        name, wanted, found = misfit
        raise WeightsError(f"{source}: {name} should be {wanted}, and is {found}")


def find_shape_mismatch(
    weights: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]
) -> tuple[str, object, object] | None:
    """(name, wanted shape, found shape) of the first tensor that is not as wanted, if there is one.

    A shape is "absent" where there is no such tensor, or where none is wanted.
    """
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            return name, wanted.get(name, "absent"), found.get(name, "absent")
    return None


def refuse_unsupported(target: str, reasons: Iterable[tuple[bool, str]]) -> None:
    """Raise WeightsError with the first reason that holds why `target` cannot express a model."""
    for holds, why in reasons:
        if holds:
            raise WeightsError(f"{target} cannot hold this model: {why}")


def check_preprocess_size(preprocess: Preprocess, config: ModelConfig) -> None:
    """Raise WeightsError where images are made of another size than positions are learned for."""
    if preprocess.image_size != config.image_size:
        made, meant = ("x".join(map(str, of.image_size)) for of in (preprocess, config))
        raise WeightsError(
            f"images are made of {made}, but the model is for {meant}: load it with image_size "
            f"{made} first"
        )


def make_numbered_labels(count: int, prefix: str = "") -> tuple[str, ...]:
    """Labels where a file has none; transformers has "LABEL_" before each."""
    return tuple(f"{prefix}{index}" for index in range(count))


def add_zero_classifier(weights: dict[str, Tensor], classes: int, width: int) -> str:
    """Add a classifier of zeros to weights without one; -> a line for a person."""
    weights["head.linear.weight"] = torch.zeros(classes, width)
    weights["head.linear.bias"] = torch.zeros(classes)
    return (
        f"the file has no classifier: the head is zero, of {classes} classes, until it is trained "
        "for yours"
    )


def add_missing_classifier(weights: dict[str, Tensor], classes: int) -> str:
    """A classifier of zeros on what the weights end in; -> a line for a person."""
    for name in ("head.representation.weight", "encoder.norm.weight", "norm.weight"):
        if name in weights:
            return add_zero_classifier(weights, classes, len(weights[name]))
    raise WeightsError("the file has neither a classifier nor a final norm")


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensor], tables: Mapping[str, dict[str, Any]]
) -> None:
    """The tensors as model.safetensors and each table as JSON; files are replaced atomically."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error
    dense = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    data = safetensors.torch.save(dense, metadata={"format": "pt"})
    write_atomically(folder / TENSORS_FILE, data)
    for name, table in tables.items():
        text = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / name, text)
