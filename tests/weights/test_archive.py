"""Files of tensors from outside: what they hold comes out, and nothing in them is run."""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from patchwords.errors import WeightsError
from patchwords.weights import safe_load as guard
from patchwords.weights.safe_load import read_npz, read_safetensors, read_torch, save_npz

Tensors = dict[str, torch.Tensor]


def tensors() -> Tensors:
    torch.manual_seed(0)
    return {"a.weight": torch.randn(3, 5), "b": torch.randn(7).bfloat16(), "n": torch.tensor(4)}


def same(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


# --- npz -------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Callable[..., None]) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a/b/kernel": rng.standard_normal((3, 5, 7)),
        "half": rng.standard_normal(11).astype(np.float16),
        "turned": np.asfortranarray(rng.standard_normal((3, 5)).astype(np.float32)),
        "big-endian": np.arange(6, dtype=">f4"),
        "step": np.int64(3),
        "words": np.array(["x", "yz"]),
        "zeros": np.zeros((64, 64), np.float32),
        "none": np.zeros((3, 0)),
    }
    save(tmp_path / "x.npz", **arrays)
    found = read_npz(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)


def test_npz_of_bfloat16(tmp_path: Path) -> None:
    value = torch.tensor([1.0, -2.5, 3e38, torch.inf, torch.nan, -0.0]).bfloat16()
    bits = value.view(torch.uint16).numpy()
    np.savez(tmp_path / "x.npz", untyped=bits.view("V2"), unsigned=bits)
    for array in read_npz(tmp_path / "x.npz").values():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, value.float().numpy())


def test_save_npz_is_all_or_nothing(tmp_path: Path) -> None:
    save_npz(tmp_path / "x.weights", {"a/b": np.ones(3)})
    save_npz(tmp_path / "x.weights", {"a/b": np.zeros(3)})
    assert os.listdir(tmp_path) == ["x.weights"]  # no ending is added, nothing is left
    np.testing.assert_array_equal(np.load(tmp_path / "x.weights")["a/b"], np.zeros(3))


# --- safetensors -----------------------------------------------------------------------------


def test_safetensors(tmp_path: Path) -> None:
    safetensors.torch.save_file(tensors(), tmp_path / "x.safetensors")
    same(read_safetensors(tmp_path / "x.safetensors"), tensors())


def in_parts(folder: Path, ending: str, write: Callable[[Tensors, Path], object]) -> Path:
    """Two files and their index, as transformers writes them."""
    folder.mkdir(exist_ok=True)
    places = {}
    for i, (name, value) in enumerate(tensors().items()):
        part = f"model-0000{i % 2 + 1}-of-00002.{ending}"
        places.setdefault(part, {})[name] = value
    for part, group in places.items():
        write(group, folder / part)
    index = folder / f"model.{ending}.index.json"
    weight_map = {name: part for part, group in places.items() for name in group}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def test_parts(tmp_path: Path) -> None:
    same(
        read_safetensors(in_parts(tmp_path / "s", "safetensors", safetensors.torch.save_file)),
        tensors(),
    )
    index = in_parts(tmp_path / "t", "bin", torch.save)
    same(read_torch(index), tensors())


def test_parts_may_be_links(tmp_path: Path) -> None:
    """The cache of the hub holds links to files elsewhere."""
    index = in_parts(tmp_path / "blobs", "safetensors", safetensors.torch.save_file)
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    same(read_safetensors(tmp_path / "snapshot" / index.name), tensors())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weight_map": {"b": "../model-00001.safetensors"}},
            "which is not a file next to it",
        ),
        ({"weight_map": {"b": "/etc/passwd"}}, "which is not a file next to it"),
        ({"weight_map": {"b": ".."}}, "which is not a file next to it"),
        ({"weight_map": {"b": "model-00003-of-00002.safetensors"}}, "there is no such file"),
        ({"weight_map": {"b": 3}}, "names '3', which is not a file next to it"),
        ({"weight_map": {"b": "model-00001-of-00002.safetensors"}}, "has 'a.weight', against"),
        ({"weight_map": ["b"]}, "it has no weight_map"),
        ({"weight_map": {}}, "it has no weight_map"),
        ({"weights": {}}, "it has no weight_map"),
        (["weight_map"], "it has no weight_map"),
    ],
)
def test_parts_that_are_not_there(tmp_path: Path, change: Any, message: str) -> None:
    index = in_parts(tmp_path / "x", "safetensors", safetensors.torch.save_file)
    index.write_text(json.dumps(change))
    with pytest.raises(WeightsError, match=message):
        read_safetensors(index)


# --- torch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("inside", [None, "state_dict_ema", "model_ema", "state_dict", "model"])
def test_torch(tmp_path: Path, inside: str | None, zipped: bool) -> None:
    content: Any = OrderedDict(tensors())
    if inside:
        settings = argparse.Namespace(model="x", lr=0.1)
        content = {"epoch": 3, "args": settings, inside: content, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    same(read_torch(tmp_path / "x.pth"), tensors())


def test_torch_takes_the_average_and_names_without_wrappers(tmp_path: Path) -> None:
    averaged = {f"module._orig_mod.{name}": value for name, value in tensors().items()}
    content = {"state_dict": {"b": torch.zeros(7)}, "state_dict_ema": averaged}
    torch.save(content, tmp_path / "x.pth")
    same(read_torch(tmp_path / "x.pth"), tensors())


def test_torch_gives_memory_of_its_own(tmp_path: Path) -> None:
    whole = torch.randn(4, 6)
    torch.save({"a": torch.nn.Parameter(whole), "b": whole[1:3, ::2].t()}, tmp_path / "x.pth")
    found = read_torch(tmp_path / "x.pth")
    (tmp_path / "x.pth").write_bytes(b"")
    assert torch.equal(found["a"], whole)
    assert torch.equal(found["b"], whole[1:3, ::2].t())
    assert not found["a"].requires_grad


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds a list, not tensors by name"),
        ({}, "holds a dict, not tensors by name"),
        ({"a": torch.ones(2), "b": 3}, "holds a int as 'b', where a state dict has tensors alone"),
        ({3: torch.ones(2)}, "holds a Tensor as '3', where"),
        ({"a": torch.ones(2), "module.a": torch.ones(2)}, "has two tensors 'a'"),
        ({"a": torch.ones(1).expand(10**9)}, "'a' is larger than the data behind it"),
        ({"a": torch.ones(2).to_sparse()}, "'a' is sparse, quantised or without data"),
        ({"a": torch.ones(2, device="meta")}, "'a' is sparse, quantised or without data"),
    ],
)
def test_torch_that_is_no_state_dict(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(WeightsError, match=message):
        read_torch(tmp_path / "x.pth")


# --- all -------------------------------------------------------------------------------------

READERS = {"npz": read_npz, "safetensors": read_safetensors, "torch": read_torch}


@pytest.mark.parametrize("reader", READERS)
def test_no_file(tmp_path: Path, reader: str) -> None:
    read = READERS[reader]
    with pytest.raises(WeightsError, match=r"no weights at .*: there is no such file"):
        read(tmp_path / "x")
    with pytest.raises(WeightsError, match="is a folder"):
        read(tmp_path)
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(WeightsError, match="is empty"):
        read(tmp_path / "x")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"<!DOCTYPE html><html>404", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4", "a Git LFS pointer"),
        (b"some words\n", "a text file"),
        ("ein Wörterbuch".encode(), "a text file"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"\x93NUMPY\x01\0", "a single NumPy array"),
        (b"\x1f\x8b\x08\0\0", "a gzip file"),
        (bytes(range(1, 64)), "a damaged file"),
    ],
)
def test_another_kind_of_file(tmp_path: Path, reader: str, content: bytes, kind: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(WeightsError, match=f"it looks like {kind}"):
        READERS[reader](tmp_path / "x")


def test_wrong_endings(tmp_path: Path) -> None:
    save_npz(tmp_path / "npz", {"a": np.ones(3)})
    safetensors.torch.save_file(tensors(), tmp_path / "safetensors")
    torch.save(tensors(), tmp_path / "torch")
    for reader, read in READERS.items():
        for name in READERS.keys() - {reader}:
            with pytest.raises(
                WeightsError, match=f"{name} is no .* file: .*it (looks like|is) a "
            ):
                read(tmp_path / name)


def test_what_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(2000))
    monkeypatch.setattr(guard, "free_memory", lambda device: 15_000)
    with pytest.raises(WeightsError, match=r"this machine has 0\.0 GiB of free memory"):
        read_npz(tmp_path / "x.npz")
    monkeypatch.setattr(guard, "free_memory", lambda device: 16_000)
    assert len(read_npz(tmp_path / "x.npz")["a"]) == 2000
    monkeypatch.setattr(guard, "MAX_TENSOR_BYTES", 15_999)
    with pytest.raises(WeightsError, match="more than 0 GiB are not read"):
        read_npz(tmp_path / "x.npz")


def test_compressed_zeros_are_read_until_they_are_a_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(10**6))
    assert not read_npz(tmp_path / "x.npz")["a"].any()
    monkeypatch.setattr(guard, "EXPANSION_EXEMPT_BYTES", 10**6)
    with pytest.raises(WeightsError, match="weights do not shrink so much"):
        read_npz(tmp_path / "x.npz")


def test_torch_files_are_not_packed(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(10**6)}, tmp_path / "x.pth")
    with (
        zipfile.ZipFile(tmp_path / "x.pth") as old,
        zipfile.ZipFile(tmp_path / "y.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(WeightsError, match="is packed, which torch never does"):
        read_torch(tmp_path / "y.pth")


def test_a_header_of_any_length_is_no_pickle(tmp_path: Path) -> None:
    """Its length comes first: of 128 bytes, or 128 more than some 256s, it begins like one."""
    for extra in range(256):
        path = tmp_path / f"{extra}.safetensors"
        tensors = {"a": torch.ones(3)}
        safetensors.torch.save_file(tensors, path, metadata={"x": "y" * extra})
        length = int.from_bytes(path.read_bytes()[:8], "little")
        assert read_safetensors(path)["a"].tolist() == [1, 1, 1], length
