"""Safe reading of foreign tensor files: no code runs, memory stays bounded.

Formats: npz (`read_npz`), safetensors, in one file or in parts, and PyTorch's own.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.lib import format as npy
from torch import Tensor

from patchwords.device import free_memory
from patchwords.errors import WeightsError
from patchwords.files import GIB, write_atomically

# Checks of a file before its content is read.
#
# A file from outside may be cut off, be another kind of file than its name says, or be made to fill
# the memory. All of it ends in one line that names the file; nothing in a file is ever run.


MAX_TENSOR_BYTES = 64 * GIB  # of all tensors of a file; ViT-G/14 has 7 GiB, BiT-R152x4 has 4
# Weights are noise and hardly shrink, except a classifier of zeros: a large file that grows more
# than this many times is made to fill the memory. Deflate can do 1,032 times.
MAX_EXPANSION = 100
EXPANSION_EXEMPT_BYTES = GIB  # may grow as it likes

# First bytes of a file -> its kind, for the error text.
FILE_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip file"),
    (b"\x93NUMPY", "a single NumPy array"),
    (b"\x80", "a pickle, as PyTorch wrote until version 1.5"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file: unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the file that it stands for"),
)


def check_weights_file(path: Path) -> int:
    """Return the size in bytes; raises WeightsError if there is no file."""
    try:
        if path.is_dir():
            raise WeightsError(f"{path} is a folder, where a file of weights was expected")
        size = path.stat().st_size
    except OSError as error:
        raise make_read_error(path, error) from error
    if size == 0:
        raise WeightsError(f"{path} is empty: fetch or copy it again")
    return size


def check_tensor_memory(path: Path, needed: int, stored: int) -> None:
    """Raise WeightsError if `needed` bytes cannot come from `stored` ones."""
    size = f"{path} holds {needed / GIB:,.1f} GiB of tensors"
    if needed > MAX_TENSOR_BYTES:
        raise WeightsError(f"{size}: more than {MAX_TENSOR_BYTES // GIB} GiB are not read")
    if needed > max(EXPANSION_EXEMPT_BYTES, MAX_EXPANSION * stored):
        raise WeightsError(
            f"{size} in {stored / GIB:,.3f} GiB on the disk: weights do not shrink so much, so "
            "it is not read"
        )
    free = free_memory(torch.device("cpu"))
    if needed > free:
        raise WeightsError(f"{size}, and this machine has {free / GIB:,.1f} GiB of free memory")


def detect_file_kind(path: Path) -> str:
    """Describe a file by its first bytes."""
    with open(path, "rb") as file:
        start = file.read(512)
    # First the length of a header in 8 bytes, which may be anything, then the header.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size - 8:
        return "a safetensors file"
    for beginning, kind in FILE_SIGNATURES:
        if start.startswith(beginning):
            return kind
    text = start.decode("utf-8", errors="replace").lstrip().lower()
    if text.startswith(("<!doctype", "<html", "<?xml")):
        return "a web page: the download answered with that in place of the weights"
    if "\ufffd" not in text[:-1] and all(sign.isprintable() or sign.isspace() for sign in text):
        return "a text file"
    return "a damaged file, or one of another kind"


@contextlib.contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """Turn any parser's error on a damaged file into one line of WeightsError."""
    try:
        yield
    except WeightsError:
        raise
    except OSError as error:
        raise make_read_error(path, error) from error
    except MemoryError as error:
        raise WeightsError(f"{path} does not fit into the memory of this machine") from error
    except Exception as error:  # zip, zlib, NumPy, torch and pickle each have their own
        raise WeightsError(f"{path} is damaged: {format_first_line(error)}") from error


def make_read_error(path: Path, error: OSError) -> WeightsError:
    if error.errno == errno.ENOENT:
        return WeightsError(f"no weights at {path}: there is no such file")
    return WeightsError(f"{path} cannot be read: {error.strerror or format_first_line(error)}")


def format_first_line(error: Exception) -> str:
    """Return an error's text on one line, cut to length; its type without a text."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].strip()


# NumPy's .npz, in which Google's weights are published: a zip with an array in each member.
#
# No pickle is ever read. Each array's header is read, and held against what the zip says of the
# member, before any data.


NPY_SUFFIX = ".npy"  # of each member; the key is what stands before it
ALLOWED_COMPRESSIONS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # those of NumPy; both can be bounded
MAX_HEADER_BYTES = 16_384  # bytes; NumPy itself takes 10,000 characters at most
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class NpyHeader:
    """The header of an array."""

    offset: int  # bytes before the data
    shape: tuple[int, ...]
    fortran: bool  # the first axis runs fastest
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Read all arrays by key; every failure is a WeightsError in one line.

    bfloat16, which NumPy does not have, becomes float32: it is stored as two bytes of no type, or
    as uint16 (big_vision's utils.recover_dtype). All else keeps its type.
    """
    path = Path(path)
    stored = check_weights_file(path)
    with translate_read_errors(path):
        if not zipfile.is_zipfile(path):
            raise WeightsError(f"{path} is no .npz file: it looks like {detect_file_kind(path)}")
        with zipfile.ZipFile(path) as archive:
            members = {_read_key(path, member): member for member in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise WeightsError(f"{path} is damaged: it has two arrays of the same name")
            headers = {key: _read_header(path, archive, member) for key, member in members.items()}
            check_tensor_memory(path, sum(header.bytes for header in headers.values()), stored)
            return {key: _read_array(archive, members[key], headers[key]) for key in members}


def save_npz(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by key as `np.savez` does, but all or nothing, under this very name."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    write_atomically(Path(path), file.getvalue())


def _read_key(path: Path, member: zipfile.ZipInfo) -> str:
    """Return the array's name; refuses names that a set of arrays cannot have."""
    name = member.filename
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        raise WeightsError(f"{path}: {name[:80]!r} is a path out of the file, not an array's name")
    if not name.endswith(NPY_SUFFIX):
        what = "a PyTorch file" if name.endswith("data.pkl") else "another zip file"
        raise WeightsError(f"{path} is no .npz file: {name[:80]!r} is no array, so it is {what}")
    if member.compress_type not in ALLOWED_COMPRESSIONS:
        raise WeightsError(f"{path}: {name[:80]!r} is packed in a way that NumPy does not use")
    return name.removesuffix(NPY_SUFFIX)


def _read_header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NpyHeader:
    with archive.open(member) as file:
        start = io.BytesIO(file.read(MAX_HEADER_BYTES))
    name = member.filename.removesuffix(NPY_SUFFIX)[:80]
    version = npy.read_magic(start)
    if version not in HEADER_READERS:
        raise WeightsError(f"{path}: {name!r} has version {version} of NumPy's format, not 1 or 2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arrays that Python 2 wrote
        shape, fortran, dtype = HEADER_READERS[version](start)
    if dtype.hasobject:
        raise WeightsError(
            f"{path}: {name!r} holds Python objects: reading it needs code to be run"
        )
    header = NpyHeader(start.tell(), shape, fortran, dtype)
    if min(shape, default=0) < 0 or header.offset + header.bytes != member.file_size:
        raise WeightsError(
            f"{path} is damaged: {name!r} says {dtype} {list(shape)[:8]}, {header.bytes:,} bytes, "
            f"and has {member.file_size - header.offset:,}"
        )
    return header


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: NpyHeader) -> np.ndarray:
    """Read to the end, which makes the zip check its sum."""
    with archive.open(member) as file:
        file.read(header.offset)
        data = file.read(header.bytes)
    flat = np.frombuffer(data, header.dtype)
    return _from_bfloat16(flat).reshape(header.shape, order="F" if header.fortran else "C")


def _from_bfloat16(flat: np.ndarray) -> np.ndarray:
    """Convert bfloat16, the upper half of float32."""
    untyped = flat.dtype.kind == "V" and flat.dtype.itemsize == 2 and flat.dtype.names is None
    if not untyped and flat.dtype != np.uint16:
        return flat
    return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


__all__ = ["read_npz", "read_safetensors", "read_torch"]

MAX_INDEX_BYTES = (
    64 * 2**20
)  # bytes of an index; those of the largest models have less than one MiB
# Where trainers keep a model's tensors; averaged ones first, as timm takes them. DINO's teacher is an
# average of its student.
STATE_DICT_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher", "student")
WRAPPER_PREFIXES = (
    "module.",
    "_orig_mod.",
)  # which parallel training and torch.compile put before names
PART_FILE_NAME = re.compile(r"[\w-][\w.-]*")  # of an index: a plain file's name, which is not ".."
NEEDS_CODE_PATTERN = re.compile(
    r"GLOBAL\s+(\S+)"
)  # torch's word for a function that a pickle calls for


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Read all tensors by name, as stored; a `.json` is the index of a model in parts.

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
    """Read the tensors of all files that an index names, which are next to it."""
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
            raise WeightsError(f"{index} names {str(part)[:80]!r}, which is not a file next to it")
        stored += check_weights_file(index.with_name(part))
    check_tensor_memory(index, stored, stored)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        found = read(index.with_name(part))
        names = {name for name, place in places.items() if place == part}
        for name in sorted(names ^ found.keys()):
            there = "has" if name in found else "lacks"
            raise WeightsError(f"{index.with_name(part)} {there} {name[:80]!r}, against {index}")
        tensors |= found
    return tensors


def read_torch(path: str | Path) -> dict[str, Tensor]:
    """Read the model's tensors from what `torch.save` wrote, a trainer's checkpoint included.

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
    """Check the size: torch compresses nothing, so the members make up the file."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if not any(member.filename.endswith("data.pkl") for member in members):
        raise WeightsError(f"{path} is no PyTorch file: it is a zip file without data.pkl")
    if any(re.search(r"(^|/)(code/|constants\.pkl$)", member.filename) for member in members):
        raise WeightsError(
            f"{path} is a TorchScript program, and reading it would run its code: ask for its "
            "weights, or save model.state_dict() where you trust it"
        )
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
    """Return the state dict in what a trainer saved, under the model's own names."""
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
    """Raise for what is no plain array, or shows few bytes many times."""
    plain = value.layout is torch.strided and not value.is_quantized and value.device.type == "cpu"
    if not plain:
        raise WeightsError(f"{path}: {name[:80]!r} is sparse, quantised or without data: not read")
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():
        raise WeightsError(f"{path}: {name[:80]!r} is larger than the data behind it: not read")
