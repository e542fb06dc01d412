"""Some hundreds of damaged and hostile files: one line of WeightsError, or the weights; no more."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from google_files import Arrays, bit_arrays, vit_arrays

from patchwords.errors import WeightsError
from patchwords.weights.google import read_google
from patchwords.weights.safe_load import read_npz, read_safetensors, read_torch

CUTS, FLIPS = 23, 29  # of each file


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = str(sentinel)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, int]]:
        return os.open, (self.sentinel, os.O_CREAT)


def load_google(path: Path) -> object:
    return read_google(read_npz(path), path.stem)


READERS: dict[str, Callable[[Path], object]] = {
    "npz": load_google,
    "packed": load_google,
    "bit": load_google,
    "safetensors": read_safetensors,
    "pth": read_torch,
    "old": read_torch,
}


@pytest.fixture(scope="module")
def whole() -> dict[str, bytes]:
    """A good file of each format."""
    tensors = {key.replace("/", "."): torch.from_numpy(v) for key, v in vit_arrays().items()}
    files = {kind: io.BytesIO() for kind in READERS}
    np.savez(files["npz"], **vit_arrays())  # type: ignore[arg-type]
    np.savez_compressed(files["packed"], **vit_arrays())  # type: ignore[arg-type]
    np.savez_compressed(files["bit"], **{k: v * 0 for k, v in bit_arrays((1,)).items()})  # type: ignore[arg-type]
    torch.save({"model": tensors}, files["pth"])
    torch.save(tensors, files["old"], _use_new_zipfile_serialization=False)
    files["safetensors"].write(safetensors.torch.save(tensors))
    return {kind: file.getvalue() for kind, file in files.items()}


def refused_or_read(kind: str, path: Path) -> bool:
    """True if it was refused, in one line that names the file or its stem."""
    try:
        READERS[kind](path)
    except WeightsError as error:
        line = str(error)
    else:
        return False
    assert "\n" not in line
    assert path.stem in line
    assert len(line) < 500
    return True


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", READERS)
def test_whole_files_are_read(tmp_path: Path, whole: dict[str, bytes], kind: str) -> None:
    assert not refused_or_read(kind, put(tmp_path / "file", whole[kind]))


@pytest.mark.parametrize("kind", READERS)
def test_cut_off(tmp_path: Path, whole: dict[str, bytes], kind: str) -> None:
    size = len(whole[kind])
    for length in {*range(0, size, size // CUTS), 1, 7, 8, 9, size - 1}:
        path = put(tmp_path / f"file{length}", whole[kind][:length])
        assert refused_or_read(kind, path), length


@pytest.mark.parametrize("kind", READERS)
def test_flipped_bytes(tmp_path: Path, whole: dict[str, bytes], kind: str) -> None:
    """A zip has sums and says so; the others cannot tell other numbers from wrong ones."""
    size = len(whole[kind])
    rng = np.random.default_rng(0)
    places = [*rng.integers(0, size, FLIPS), *range(0, 64, 5), size - 5, size - 20]
    refused = 0
    for place in places:
        content = bytearray(whole[kind])
        content[place] ^= 0x55
        refused += refused_or_read(kind, put(tmp_path / f"file{place}", bytes(content)))
    assert refused > (FLIPS // 2 if kind in ("npz", "packed", "bit") else 3)


def test_arrays_missing_doubled_and_of_other_shapes(tmp_path: Path) -> None:
    arrays = vit_arrays()
    keys = list(arrays)
    damaged: dict[str, Arrays] = {"half": {key: arrays[key] for key in keys[: len(keys) // 2]}}
    for i, key in enumerate(keys):
        rest = {name: value for name, value in arrays.items() if name != key}
        damaged[f"renamed{i}"] = rest | {key + "s": arrays[key]}
        damaged[f"longer{i}"] = rest | {key: np.concatenate([arrays[key]] * 2)}
        damaged[f"flatter{i}"] = rest | {key: arrays[key][0]}
    for name, content in damaged.items():
        np.savez(tmp_path / f"{name}.npz", **content)  # type: ignore[arg-type]
        head = "head" in str(set(arrays) - set(content))  # a model may come without a head
        assert refused_or_read("npz", tmp_path / f"{name}.npz") or head, name
    np.savez(tmp_path / "more.npz", **arrays, more=np.ones(3))  # type: ignore[arg-type]
    assert not refused_or_read("npz", tmp_path / "more.npz")


def member(header: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An .npy file by hand."""
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header + data


def described(shape: str, dtype: str = "'<f4'") -> bytes:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()


HEADERS = {
    "huge": member(described("(1000000000000, 1000)")),
    "overflowing": member(described(f"({2**62}, {2**62}, 4)")),
    "negative": member(described("(-1, -3)"), b"\0" * 12),
    "too small": member(described("(3,)"), b"\0" * 16),
    "too large": member(described("(5,)"), b"\0" * 16),
    "endless without data": member(described("(1000000000000000000, 0)")),
    "objects": member(described("(1,)", "'|O'"), b"\0" * 8),
    "objects inside": member(described("(1,)", "[('a', '|O')]"), b"\0" * 8),
    "wide": member(described("(1,)", "'|V99999999999'")),
    "not a type": member(described("(1,)", "'rm -rf'")),
    "not a shape": member(described("'abc'")),
    "nested": member(b"(" * 9000 + b")" * 9000),
    "code": member(b"__import__('os').system('touch sentinel')\n"),
    "longer than allowed": member(b" " * 20_000 + described("(1,)"), b"\0" * 4),
    "long in version 2": member(described("(1,)")[:-1] + b" " * 10**6, b"", b"\x02\x00"),
    "of another version": member(described("(1,)"), b"\0" * 4, b"\x03\x00"),
    "of no version": member(described("(1,)"), b"\0" * 4, b"\x09\x00"),
    "cut": member(described("(1,)"))[:20],
    "empty": b"",
    "text": b"these are no numbers",
}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", HEADERS)
def test_headers_made_by_hand(tmp_path: Path, name: str, compression: int) -> None:
    with zipfile.ZipFile(tmp_path / "file.npz", "w", compression) as archive:
        archive.writestr("cls.npy", HEADERS[name])
    says = {"objects": "needs code to be run", "negative": "says float32", "huge": "says float32"}
    with pytest.raises(WeightsError, match=says.get(name, "file")) as error:
        load_google(tmp_path / "file.npz")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "sentinel").exists()
    assert not Path("sentinel").exists()


@pytest.mark.parametrize(
    "name",
    ["../cls.npy", "a/../../cls.npy", "/etc/cls.npy", "..\\cls.npy", "\\cls.npy", "cls.txt", "a/"],
)
def test_names_made_by_hand(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        archive.writestr(name, member(described("(1,)"), b"\0" * 4))
    with pytest.raises(WeightsError, match=r"path out of the file|is no array"):
        read_npz(tmp_path / "file.npz")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_of_a_name_and_another_packing(tmp_path: Path) -> None:
    good = member(described("(1,)"), b"\0" * 4)
    with zipfile.ZipFile(tmp_path / "twice.npz", "w") as archive:
        archive.writestr("cls.npy", good)
        archive.writestr("cls.npy", good)
    with pytest.raises(WeightsError, match="two arrays of the same name"):
        read_npz(tmp_path / "twice.npz")
    with zipfile.ZipFile(tmp_path / "bz2.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("cls.npy", good)
    with pytest.raises(WeightsError, match="packed in a way that NumPy does not use"):
        read_npz(tmp_path / "bz2.npz")


def traps(folder: Path, trap: Trap) -> Iterator[tuple[str, Path]]:
    """(reader, file) of all ways to bring code along."""
    np.savez(folder / "objects.npz", a=np.array([trap], dtype=object), allow_pickle=True)
    yield "npz", folder / "objects.npz"
    np.save(folder / "single.npz.npy", np.array([trap], dtype=object), allow_pickle=True)
    yield "npz", folder / "single.npz.npy"
    yield "npz", put(folder / "pickle.npz", pickle.dumps(trap))
    for zipped in (True, False):
        for i, content in enumerate(
            (trap, {"a": trap}, {"model": {"a": torch.ones(1)}, "b": trap})
        ):
            path = folder / f"trap{i}{zipped}.pth"
            torch.save(content, path, _use_new_zipfile_serialization=zipped)
            yield "pth", path
    for protocol in range(6):
        yield "pth", put(folder / f"plain{protocol}.pth", pickle.dumps(trap, protocol))
    torch.save(torch.nn.Linear(2, 3), folder / "module.pth")
    yield "pth", folder / "module.pth"
    yield "safetensors", put(folder / "pickle.safetensors", pickle.dumps(trap))


def test_code_is_never_run(tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    count = 0
    for kind, path in traps(tmp_path, Trap(sentinel)):
        assert refused_or_read(kind, path), path
        assert not sentinel.exists(), path
        count += 1
    assert count == 17
    with pytest.raises(WeightsError, match=r"needs code to be run \(\w+\.open\)"):
        read_torch(tmp_path / "trap1True.pth")
    pickle.loads((tmp_path / "plain2.pth").read_bytes())
    assert sentinel.exists()  # it would have worked


def header(table: str, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(table)) + table.encode() + data


SAFETENSORS = {
    "huge header": struct.pack("<Q", 2**60) + b"{}",
    "long header": struct.pack("<Q", 99) + b"{}",
    "no table": header("{" + "[" * 5000),
    "huge shape": header(
        '{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}'
    ),
    "past the end": header('{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}', b"\0" * 4),
    "backwards": header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', b"\0" * 4),
    "no type": header('{"a":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4),
    "unclaimed": header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 9),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors_made_by_hand(tmp_path: Path, name: str) -> None:
    assert refused_or_read("safetensors", put(tmp_path / "file", SAFETENSORS[name]))


BOMBS = """
    import resource, sys
    from pathlib import Path
    from patchwords.errors import WeightsError
    from patchwords.weights.safe_load import read_npz, read_torch

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    room = 150 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
    for path in map(Path, sys.argv[1:]):
        try:
            read_npz(path) if path.suffix == ".npz" else read_torch(path)
        except WeightsError as error:
            print(path.name, error)
"""


def zeros(path: Path, start: bytes, holds: int, zip_says: int) -> Path:
    """An array's header before so many zeros, and what the zip's table says of their number."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("cls.npy", "w") as file:
            file.write(start)
            for _ in range(holds // 2**20):
                file.write(bytes(2**20))
        archive.filelist[0].file_size = len(start) + zip_says
    return path


def old_torch(path: Path, count: int) -> Path:
    """A file before PyTorch 1.6 whose storage says that it has so many numbers; it has 77."""
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(77)}, buffer, _use_new_zipfile_serialization=False)
    said, new = b"K" + bytes([77]), b"\x8a\x06" + count.to_bytes(6, "little")
    assert said in buffer.getvalue()
    return put(path, buffer.getvalue().replace(said, new))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_bombs_do_not_fill_the_memory(tmp_path: Path) -> None:
    """They are read by a process that may take no more than 150 MiB."""
    mib, gib = 2**20, 2**30
    one, many = member(described("(1,)")), member(described(f"({50 * mib},)"))
    more, most = member(described(f"({gib},)")), member(described(f"({250 * gib},)"))
    header = member(bytes(16), version=b"\x02\x00")[:8] + struct.pack("<I", 200 * mib)
    files = [
        zeros(tmp_path / "small.npz", many, 200 * mib, 200 * mib),
        zeros(tmp_path / "large.npz", more, mib, 4 * gib),
        zeros(tmp_path / "enormous.npz", most, mib, 1000 * gib),
        zeros(tmp_path / "more.npz", one, 200 * mib, 200 * mib),
        zeros(tmp_path / "hidden.npz", one, 200 * mib, 4),
        zeros(tmp_path / "header.npz", header, 200 * mib, 200 * mib),
        old_torch(tmp_path / "large.pth", gib),
        old_torch(tmp_path / "enormous.pth", 2**40),
    ]
    assert max(file.stat().st_size for file in files) < 4 * mib
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BOMBS), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.stderr == ""
    assert done.stdout.count("does not fit into the memory") == 1  # of the small one: it is honest
    assert [line.split()[0] for line in done.stdout.splitlines()] == [file.name for file in files]
