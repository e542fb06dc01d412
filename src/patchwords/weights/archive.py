"""Files of tensors from outside, read so that nothing in them can run, or fill the memory.

`read_npz` is in npz.py; here are safetensors, in one file or in parts, and PyTorch's own.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from patchwords.errors import WeightsError
from patchwords.weights.guard import (
    check_tensor_memory,
    check_weights_file,
    detect_file_kind,
    translate_read_errors,
)
from patchwords.weights.npz import read_npz

__all__ = ["read_npz", "read_safetensors", "read_torch"]

MAX_INDEX_BYTES = (
    64 * 2**20
)  # bytes of an index; those of the largest models have less than one MiB
# Where trainers keep a model's tensors; averaged ones first, as timm takes them.
STATE_DICT_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")
WRAPPER_PREFIXES = (
    "module.",
    "_orig_mod.",
)  # which parallel training and torch.compile put before names
PART_FILE_NAME = re.compile(r"[\w-][\w.-]*")  # of an index: a plain file's name, which is not ".."
NEEDS_CODE_PATTERN = re.compile(
    r"GLOBAL\s+(\S+)"
)  # torch's word for a function that a pickle calls for


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors by name, as they are stored; a `.json` is the index of a model in parts.

    Raises WeightsError in one line.
    """
    path = Path(path)
    if path.suffix == ".json":
        return _read_parts(path, read_safetensors)
    stored = check_weights_file(path)
    check_tensor_memory(path, stored, stored)
    with translate_read_errors(path):
        if (kind := detect_file_kind(path)) != "a safetensors file":
            raise WeightsError(f"{path} is no safetensors file: it looks like {kind}")
        # Cloned: the file's own memory is not aligned, and goes where the file goes.
        return {name: value.clone() for name, value in safetensors.torch.load_file(path).items()}


def _read_parts(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of all files that an index names; those files lie beside it."""
    if check_weights_file(index) > MAX_INDEX_BYTES:
        raise WeightsError(f"{index} is no index of weights: it is far too large")
    with translate_read_errors(index):
        table = json.loads(index.read_text(encoding="utf-8"))
        places = table.get("weight_map") if isinstance(table, dict) else None
        if not isinstance(places, dict) or not places:
            raise WeightsError(f"{index} is no index of weights: it has no weight_map")
        parts = sorted(set(places.values()))
    stored = 0
    for part in parts:
        if not isinstance(part, str) or PART_FILE_NAME.fullmatch(part) is None:
            raise WeightsError(f"{index} names {str(part)[:80]!r}, which is no file beside it")
        stored += check_weights_file(index.with_name(part))
    check_tensor_memory(index, stored, stored)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        found = read(index.with_name(part))
        wanted = {name for name, place in places.items() if place == part}
        for name in sorted(wanted ^ found.keys()):
            there = "has" if name in found else "lacks"
            raise WeightsError(f"{index.with_name(part)} {there} {name[:80]!r}, against {index}")
        tensors |= found
    return tensors


def read_torch(path: str | Path) -> dict[str, Tensor]:
    """The model's tensors by name, of what `torch.save` wrote, a trainer's checkpoint included.

    Nothing but tensors and plain values is unpickled (`weights_only`). Raises WeightsError in one
    line, also for a file that would need code to be run. A `.json` is an index, as above.
    """
    path = Path(path)
    if path.suffix == ".json":
        return _read_parts(path, read_torch)
    stored = check_weights_file(path)
    check_tensor_memory(path, stored, stored)
    with translate_read_errors(path):
        zipped = zipfile.is_zipfile(path)
        if zipped:
            _check_zip(path, stored)
        elif not (kind := detect_file_kind(path)).startswith("a pickle"):
            raise WeightsError(f"{path} is no PyTorch file: it looks like {kind}")
        tensors = _find_state_dict(path, _unpickle(path, zipped))
        for name, value in tensors.items():
            _check_tensor(path, name, value)
        check_tensor_memory(
            path, sum(value.numel() * value.itemsize for value in tensors.values()), stored
        )
        return {name: value.detach().clone() for name, value in tensors.items()}


def _check_zip(path: Path, stored: int) -> None:
    """torch packs nothing: the members, one behind the other, make the file."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if not any(member.filename.endswith("data.pkl") for member in members):
        raise WeightsError(f"{path} is no PyTorch file: it is a zip file without data.pkl")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise WeightsError(f"{path} is packed, which torch never does: it is not read")
    if sum(member.file_size for member in members) > stored:
        raise WeightsError(f"{path} is damaged: its parts are larger than the whole")


def _unpickle(path: Path, zipped: bool) -> Any:
    try:
        # timm's checkpoints keep the command's arguments so; it is a table without code.
        allowed = torch.serialization.safe_globals([argparse.Namespace])
        with allowed, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles in a newer protocol
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        if wanted := NEEDS_CODE_PATTERN.search(str(error)):
            raise WeightsError(
                f"{path} holds more than tensors: reading it needs code to be run "
                f"({wanted[1][:80]}); ask for safetensors, or convert it where you trust it"
            ) from error
        # The first line speaks of ways around weights_only, which there are none of here.
        raise WeightsError(f"{path} is damaged: its pickle cannot be read") from error


def _find_state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    """The state dict in what a trainer saved, under the names that the model itself uses."""
    for key in STATE_DICT_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise WeightsError(f"{path} holds a {type(content).__name__}, not tensors by name")
    tensors: dict[str, Tensor] = {}
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise WeightsError(
                f"{path} holds a {type(value).__name__} as {str(name)[:80]!r}, where a state dict "
                "has tensors alone"
            )
        while name.startswith(WRAPPER_PREFIXES):
            name = name.split(".", 1)[1]  # noqa: PLW2901
        if name in tensors:
            raise WeightsError(f"{path} has two tensors {name[:80]!r}")
        tensors[name] = value
    return tensors


def _check_tensor(path: Path, name: str, value: Tensor) -> None:
    """Raises for what is no plain array, or shows few bytes many times."""
    plain = value.layout is torch.strided and not value.is_quantized and value.device.type == "cpu"
    if not plain:
        raise WeightsError(f"{path}: {name[:80]!r} is sparse, quantised or without data: not read")
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():
        raise WeightsError(f"{path}: {name[:80]!r} is larger than the data behind it: not read")
