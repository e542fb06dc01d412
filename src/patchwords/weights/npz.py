"""NumPy's .npz, in which Google's weights are published: a zip with an array in each member.

No pickle is ever read. Each array's header is read, and held against what the zip says of the
member, before any data.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from patchwords.errors import WeightsError
from patchwords.files import write_atomically
from patchwords.weights.guard import (
    check_tensor_memory,
    check_weights_file,
    detect_file_kind,
    translate_read_errors,
)

NPY_SUFFIX = ".npy"  # of each member; the key is what stands before it
ALLOWED_COMPRESSIONS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # those of NumPy; both can be bounded
MAX_HEADER_BYTES = 16_384  # bytes; NumPy itself takes 10,000 characters at most
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class NpyHeader:
    """What an array says of itself."""

    offset: int  # bytes before the data
    shape: tuple[int, ...]
    fortran: bool  # the first axis runs fastest
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """Of the data."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays by key; every failure is a WeightsError in one line.

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
    """The name of the array; refused are names that a set of arrays cannot have."""
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
    """Reading to the end makes the zip check its sum."""
    with archive.open(member) as file:
        file.read(header.offset)
        data = file.read(header.bytes)
    flat = np.frombuffer(data, header.dtype)
    return _from_bfloat16(flat).reshape(header.shape, order="F" if header.fortran else "C")


def _from_bfloat16(flat: np.ndarray) -> np.ndarray:
    """bfloat16 is the upper half of float32."""
    untyped = flat.dtype.kind == "V" and flat.dtype.itemsize == 2 and flat.dtype.names is None
    if not untyped and flat.dtype != np.uint16:
        return flat
    return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
