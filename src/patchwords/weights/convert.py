"""Conversion shared by all foreign formats: files, names, shapes, refusals.

A folder holds config.json and the tensors, as safetensors or as a pickle that is read as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.files import explain_write_error, write_atomically
from patchwords.models.build import ModelConfig
from patchwords.models.resnet.config import TrunkConfig
from patchwords.weights.adapt import get_tensor_shapes
from patchwords.weights.safe_load import read_safetensors, read_torch

CONFIG_FILE, TENSORS_FILE = "config.json", "model.safetensors"
# By preference; an index names the parts of weights that are cut into several files.
WEIGHT_FILES = (
    TENSORS_FILE,
    f"{TENSORS_FILE}.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# What reading a damaged table can raise: JSON may hold anything in place of a number.
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
    """Read a JSON file that holds a table. Raises WeightsError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    if not isinstance(table, dict):
        raise WeightsError(f"{path} is damaged: it holds no table")
    return table


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file or a folder. Raises WeightsError."""
    if path.is_dir():
        files = [path / name for name in WEIGHT_FILES if (path / name).is_file()]
        if not files:
            raise WeightsError(f"{path} holds no weights: it lacks {' and '.join(WEIGHT_FILES)}")
        path = files[0]
    return read_safetensors(path) if ".safetensors" in path.name else read_torch(path)


def validate_tensors(
    weights: Mapping[str, Tensor], config: ModelConfig, source: Path
) -> dict[str, Tensor]:
    """Check the tensors against the config, by name and shape; halves become float32.

    Raises WeightsError with the first that does not fit, or that holds NaN or infinity.
    """
    check_tensor_shapes(weights, config, source)
    for name, value in weights.items():
        if not value.is_floating_point():
            raise WeightsError(f"{source}: {name} is of {value.dtype}; weights are real numbers")
    refuse_not_finite(weights, str(source))
    return {
        name: value.to(torch.promote_types(value.dtype, torch.float32)).contiguous()
        for name, value in weights.items()
    }


def refuse_not_finite(weights: Mapping[str, Tensor], source: str) -> None:
    """Raise WeightsError for the first tensor with NaN or infinity: its answers would be NaN."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise WeightsError(
                f"{source}: {name} holds NaN or infinity: the file is damaged, or its training "
                "diverged"
            )


def check_tensor_shapes(weights: Mapping[str, Tensor], config: ModelConfig, source: Path) -> None:
    """Raise WeightsError for the first tensor that the config does not have in this shape."""
    if config.layers > len(weights):  # before a model of absurd depth is built
        raise WeightsError(f"{source} has {len(weights)} tensors for {config.layers} layers")
    try:
        expected_shapes = get_tensor_shapes(config)
    except (
        RuntimeError,
        TypeError,
        OverflowError,
    ) as error:  # more numbers than an index can count
        raise WeightsError(f"{source} describes a model too large for any machine") from error
    if (misfit := find_shape_mismatch(weights, expected_shapes)) is not None:
        name, expected, actual = misfit
        raise WeightsError(f"{source}: {name} should be {expected}, and is {actual}")


def find_shape_mismatch(
    weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]
) -> tuple[str, object, object] | None:
    """Return (name, config's shape, tensor's shape) of the first mismatch, if there is one.

    A shape is "absent" where there is no such tensor, or where none is wanted.
    """
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            return name, expected.get(name, "absent"), shapes.get(name, "absent")
    return None


def refuse_unsupported(target: str, reasons: Iterable[tuple[bool, str]]) -> None:
    """Raise WeightsError with the first reason why `target` cannot express a model."""
    for holds, why in reasons:
        if holds:
            raise WeightsError(f"{target} cannot hold this model: {why}")


def check_preprocess_size(preprocess: Preprocess, config: ModelConfig) -> None:
    """Raise WeightsError if positions are learned for another image size."""
    if preprocess.image_size != config.image_size:
        made, meant = ("x".join(map(str, of.image_size)) for of in (preprocess, config))
        raise WeightsError(
            f"images are made of {made}, but the model is for {meant}: load it with image_size "
            f"{made} first"
        )


def make_numbered_labels(count: int, prefix: str = "") -> tuple[str, ...]:
    """Return labels for a file without any; transformers puts "LABEL_" before each number."""
    return tuple(f"{prefix}{index}" for index in range(count))


def add_zero_classifier(weights: dict[str, Tensor], classes: int, width: int) -> str:
    """Add a classifier of zeros to weights without one; return a note for the user."""
    weights["head.linear.weight"] = torch.zeros(classes, width)
    weights["head.linear.bias"] = torch.zeros(classes)
    return (
        f"the file has no classifier: the head is zero, of {classes} classes, until it is trained "
        "for yours"
    )


def add_missing_classifier(weights: dict[str, Tensor], classes: int) -> str:
    """Return a classifier of zeros for what the weights end in, and a note for the user."""
    for name in (
        "head.representation.weight",
        "head.norm.weight",
        "encoder.norm.weight",
        "norm.weight",
    ):
        if name in weights:
            return add_zero_classifier(weights, classes, len(weights[name]))
    raise WeightsError("the file has neither a classifier nor a final norm")


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensor], tables: Mapping[str, dict[str, Any]]
) -> None:
    """Write the tensors as model.safetensors and each table as JSON; files are replaced atomically."""
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


# Renaming between two layouts, by one table for both directions.


# The names of a module or parameter in both layouts, with {} for each number: the pair
# ("encoder.blocks.{}.norm1", "blocks.{}.norm1") stands for the weight and the bias of every block.
NamePairs = Sequence[tuple[str, str]]


def rename_tensors(
    weights: Mapping[str, Tensor], pairs: NamePairs
) -> tuple[dict[str, Tensor], list[str]]:
    """Rename tensors by pairs of names; return them and the names that no pair has.

    Raises WeightsError where two tensors would have one name.
    """
    patterns = [(_compile_pattern(first), second) for first, second in pairs]
    renamed: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in weights.items():
        new = _translate_name(name, patterns)
        if new is None:
            unknown.append(name)
        elif new in renamed:
            raise WeightsError(f"{new} is there twice, once under the name {name}: keep one")
        else:
            renamed[new] = tensor
    return renamed, unknown


def reverse_pairs(pairs: NamePairs) -> NamePairs:
    """Invert a table of names."""
    return [(second, first) for first, second in pairs]


def _translate_name(name: str, patterns: Sequence[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, new in patterns:
        if match := pattern.fullmatch(name):
            *numbers, parameter = match.groups(default="")
            return new.format(*numbers) + parameter
    return None


def _compile_pattern(name: str) -> re.Pattern[str]:
    numbered = re.escape(name).replace(r"\{\}", r"(\d+)")
    return re.compile(rf"{numbered}(\.weight|\.bias)?")


# Axes of parameters: Flax and TensorFlow to PyTorch, and back.
#
# Sizes: D width, K heads, Dh head width; I O channels in and out.


TensorLayout = Literal[
    "as is", "dense", "convolution", "1x1 dense", "to heads", "heads' bias", "from heads"
]


@dataclass(frozen=True)
class ArraySource:
    """The place of a parameter in a file: keys, whose rows are stacked in ours.

    (q, k and v are three arrays there, and one matrix here.)
    """

    keys: tuple[str, ...]
    layout: TensorLayout


LAYOUT_TO_TORCH: dict[TensorLayout, Callable[[Tensor], Tensor]] = {
    "as is": lambda x: x,
    "dense": lambda x: x.mT,  # [I, O] -> [O, I]
    "convolution": lambda x: x.permute(3, 2, 0, 1),  # [h, w, I, O] -> [O, I, h, w]
    "1x1 dense": lambda x: x[0, 0].mT,  # [1, 1, I, O] -> [O, I]
    "to heads": lambda x: x.flatten(1).mT,  # [D, K, Dh] -> [K*Dh, D]
    "heads' bias": lambda x: x.flatten(),  # [K, Dh] -> [K*Dh]
    "from heads": lambda x: x.flatten(0, 1).mT,  # [K, Dh, D] -> [D, K*Dh]
}
TORCH_TO_LAYOUT: dict[TensorLayout, Callable[[Tensor, int], Tensor]] = {  # (ours, K) -> theirs
    "as is": lambda x, heads: x,
    "dense": lambda x, heads: x.mT,
    "convolution": lambda x, heads: x.permute(2, 3, 1, 0),
    "1x1 dense": lambda x, heads: x.mT[None, None],
    "to heads": lambda x, heads: x.mT.unflatten(1, (heads, -1)),
    "heads' bias": lambda x, heads: x.unflatten(0, (heads, -1)),
    "from heads": lambda x, heads: x.mT.unflatten(0, (heads, -1)),
}


def convert_to_torch(
    arrays: Mapping[str, Tensor], names: Mapping[str, ArraySource]
) -> dict[str, Tensor]:
    """Convert arrays by key to parameters by name; `names` has the place of each."""
    return {
        name: torch.cat(
            [LAYOUT_TO_TORCH[source.layout](arrays[key]) for key in source.keys]
        ).contiguous()
        for name, source in names.items()
    }


def convert_from_torch(
    weights: Mapping[str, Tensor], names: Mapping[str, ArraySource], heads: int = 1
) -> dict[str, Tensor]:
    """Convert parameters by name to arrays by key; the inverse of `convert_to_torch`.

    On the meta device it gives the shapes that a file must have.
    """
    arrays = {}
    for name, source in names.items():
        parts = weights[name].chunk(len(source.keys))
        for key, part in zip(source.keys, parts, strict=True):
            arrays[key] = TORCH_TO_LAYOUT[source.layout](part, heads).contiguous()
    return arrays


# Standardised convolutions, scaled for another project's epsilon.
#
# Of w / sqrt(var(w) + e) nothing changes if w is k times and e is k^2 times as large.


def rescale_to_epsilon_1e8(
    weights: Mapping[str, Tensor], trunk: TrunkConfig
) -> tuple[dict[str, Tensor], TrunkConfig, list[str]]:
    """Scale weights for 1e-8 in place of BiT's 1e-10: the same function; other forms stay.

    -> weights, the trunk that they are for, and what a person should know.
    """
    if trunk.standardise != "var+1e-10" or trunk.spatial != "convolution":
        return dict(weights), trunk, []
    scaled = {
        name: value * 10 if name.startswith("trunk.") and value.ndim == 4 else value
        for name, value in weights.items()
    }
    note = (
        "convolution weights are written 10 times as large: they are standardised there with an "
        "epsilon of 1e-8, not 1e-10, and so give the same"
    )
    return scaled, replace(trunk, standardise="var+1e-8"), [note]


# The result of every reader.


@dataclass(frozen=True)
class LoadedWeights:
    """A model in parts, under our names: config, tensors, preprocessing and labels."""

    config: ModelConfig
    weights: dict[str, Tensor]  # complete: those of `build(config)`, by name and shape
    labels: tuple[str, ...]
    preprocess: Preprocess
    architecture: str | None = None  # canonical name, where the sizes have one
    home: Path | None = None  # the model folder of ours, where it came from one
    notes: tuple[str, ...] = ()  # what a person should know: a head of zeros, keys left out
    task: Mapping[str, Any] | None = None  # of a model folder: what it is a backbone for


# The forms in which weights are written, whose programs open them, and where they go.
