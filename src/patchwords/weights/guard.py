"""What a file of weights is asked before its content is read.

A file from outside may be cut off, be another kind of file than its name says, or be made to fill
the memory. All of it ends in one line that names the file; nothing in a file is ever run.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import torch

from patchwords.device import free_memory
from patchwords.errors import WeightsError

GIB = 2**30
MAX_TENSOR_BYTES = 64 * GIB  # of all tensors of a file; ViT-G/14 has 7 GiB, BiT-R152x4 has 4
# Weights are noise and hardly shrink, but for a classifier of zeros: a large file that grows more
# than this many times is made to fill the memory. Deflate can do 1,032 times.
MAX_EXPANSION = 100
EXPANSION_EXEMPT_BYTES = GIB  # may grow as it likes

# How files begin -> what they are; read by people who have the wrong file in hand.
FILE_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip file"),
    (b"\x93NUMPY", "a single NumPy array"),
    (b"\x80", "a pickle, as PyTorch wrote until version 1.5"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file: unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the file that it stands for"),
)


def check_weights_file(path: Path) -> int:
    """The size in bytes; raises WeightsError where there is no file to read."""
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
    """Raises WeightsError where `needed` bytes of tensors from `stored` ones cannot be meant."""
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
    """What the first bytes of a file say of it, for a person."""
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
    """Whatever a damaged file makes its parser raise becomes one line of WeightsError."""
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
    """What an error says, cut to what fits a line; its kind where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].strip()
