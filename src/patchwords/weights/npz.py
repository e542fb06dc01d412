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
from patchwords.weights.guard import check_file, check_room, looks_like, reading

SUFFIX = ".npy"  # of each member; the key is what stands before it
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those of NumPy; both can be bounded
MOST_HEADER = 16_384  # bytes; NumPy itself takes 10,000 characters at most
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class Header:
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
    stored = check_file(path)
    with reading(path):
        if not zipfile.is_zipfile(path):
            raise WeightsError(f"{path} is no .npz file: it looks like {looks_like(path)}")
        with zipfile.ZipFile(path) as archive:
            members = {_key(path, member): member for member in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise WeightsError(f"{path} is damaged: it has two arrays of the same name")
            headers = {key: _header(path, archive, member) for key, member in members.items()}
            check_room(path, sum(header.bytes for header in headers.values()), stored)
            return {key: _array(archive, members[key], headers[key]) for key in members}


def save_npz(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by key as `np.savez` does, but all or nothing, under this very name."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    write_atomically(Path(path), file.getvalue())


def _key(path: Path, member: zipfile.ZipInfo) -> str:
    """The name of the array; refused are names that a set of arrays cannot have."""
    name = member.filename
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        raise WeightsError(f"{path}: {name[:80]!r} is a path out of the file, not an array's name")
    if not name.endswith(SUFFIX):
        what = "a PyTorch file" if name.endswith("data.pkl") else "another zip file"
        raise WeightsError(f"{path} is no .npz file: {name[:80]!r} is no array, so it is {what}")
    if member.compress_type not in COMPRESSIONS:
        raise WeightsError(f"{path}: {name[:80]!r} is packed in a way that NumPy does not use")
    return name.removesuffix(SUFFIX)


def _header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    with archive.open(member) as file:
        start = io.BytesIO(file.read(MOST_HEADER))
    name = member.filename.removesuffix(SUFFIX)[:80]
    version = npy.read_magic(start)
    if version not in READERS:
        raise WeightsError(f"{path}: {name!r} has version {version} of NumPy's format, not 1 or 2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arrays that Python 2 wrote
        shape, fortran, dtype = READERS[version](start)
    if dtype.hasobject:
        raise WeightsError(
            f"{path}: {name!r} holds Python objects: reading it needs code to be run"
        )
    header = Header(start.tell(), shape, fortran, dtype)
    if min(shape, default=0) < 0 or header.offset + header.bytes != member.file_size:
        raise WeightsError(
            f"{path} is damaged: {name!r} says {dtype} {list(shape)[:8]}, {header.bytes:,} bytes, "
            f"and has {member.file_size - header.offset:,}"
        )
    return header


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: Header) -> np.ndarray:
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
