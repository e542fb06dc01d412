"""Checkpoints: bit-exact, atomic, checked when read, and free of code."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from patchwords.errors import CheckpointError
from patchwords.training.engine.checkpoint import (
    load_checkpoint,
    load_latest_checkpoint,
    save_checkpoint,
)


def state_of(number: float) -> dict[str, Any]:
    """A state like a run's: tensors, plain values, the state of an optimizer."""
    model = nn.Linear(7, 5)
    nn.init.constant_(model.weight, number)
    nn.init.constant_(model.bias, number / 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 7)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**state, "step": int(number), "average": None, "skipped": {"ä.png": "truncated"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1, 2):
        save_checkpoint(tmp_path / "checkpoints", step, state_of(step))
    return tmp_path / "checkpoints"


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """(step of the state that training would resume from, warnings)"""
    warnings: list[str] = []
    state = load_latest_checkpoint(folder, warnings.append)
    return (None if state is None else state["step"]), warnings


def test_round_trip_is_bit_exact(folder: Path) -> None:
    expected = state_of(2)
    saved = load_latest_checkpoint(folder, pytest.fail)
    assert saved is not None
    assert saved.keys() == expected.keys()
    for name, value in expected["model"].items():
        assert torch.equal(saved["model"][name], value)
    for index, moments in expected["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(saved["optimizer"]["state"][index][name], value)
    assert saved["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    assert (saved["step"], saved["skipped"]) == (2, {"ä.png": "truncated"})


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert newest(tmp_path / "nowhere") == (None, [])


def test_the_last_two_are_kept(folder: Path) -> None:
    for step in (30, 100_000_000):  # also where the number outgrows its zeros
        save_checkpoint(folder, step, state_of(step % 997))
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000030", "step-100000000"]


def test_the_checksum_is_the_one_that_sha256sum_reads(folder: Path) -> None:
    checkpoint = folder / "step-00000002"
    digest = hashlib.sha256((checkpoint / "state.pt").read_bytes()).hexdigest()
    assert (checkpoint / "sha256").read_text() == f"{digest}  state.pt\n"


def truncate(checkpoint: Path) -> None:
    path = checkpoint / "state.pt"
    os.truncate(path, path.stat().st_size // 2)


def flip_a_byte(checkpoint: Path) -> None:
    path = checkpoint / "state.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(checkpoint: Path) -> None:
    (checkpoint / "state.pt").write_bytes(b"")


def without_checksum(checkpoint: Path) -> None:
    (checkpoint / "sha256").unlink()


def empty_checksum(checkpoint: Path) -> None:
    (checkpoint / "sha256").write_bytes(b"")


def scrambled_checksum(checkpoint: Path) -> None:
    (checkpoint / "sha256").write_bytes(b"\xff\xfe\x80")


def without_state(checkpoint: Path) -> None:
    (checkpoint / "state.pt").unlink()


DAMAGES = [
    truncate,
    flip_a_byte,
    empty,
    without_checksum,
    empty_checksum,
    scrambled_checksum,
    without_state,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_one_the_one_before_is_used(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    damage(folder / "step-00000002")
    step, warnings = newest(folder)
    assert step == 1
    assert len(warnings) == 1
    assert "step-00000002" in warnings[0]
    assert "trying the one before" in warnings[0]
    assert "\n" not in warnings[0]


def test_all_damaged_is_an_error(folder: Path) -> None:
    truncate(folder / "step-00000001")
    flip_a_byte(folder / "step-00000002")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole; start again"):
        load_latest_checkpoint(folder, lambda line: None)


def test_a_damaged_one_is_written_anew(folder: Path) -> None:
    flip_a_byte(folder / "step-00000002")
    save_checkpoint(folder, 2, state_of(2))
    assert newest(folder) == (2, [])


def test_what_a_kill_left_is_not_taken_for_a_checkpoint(folder: Path) -> None:
    part = folder / ".step-00000003.part"
    part.mkdir()
    (part / "state.pt").write_bytes(b"half of it")
    assert newest(folder) == (2, [])
    save_checkpoint(folder, 3, state_of(3))
    assert newest(folder) == (3, [])
    assert not part.exists()


class DiskFull:
    """A file on which a write fails, as torch meets it."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> DiskFull:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["write", "fsync", "rename"])
def test_a_full_disk_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fails(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "write":
        monkeypatch.setattr(
            "patchwords.training.engine.checkpoint.open",
            lambda path, mode: DiskFull(open(path, mode)),  # noqa: SIM115
            raising=False,
        )
    else:
        monkeypatch.setattr(os, "fsync" if where == "fsync" else "replace", fails)
    before = {path.name: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(folder, 3, state_of(3))
    monkeypatch.undo()
    message = str(caught.value)
    assert message.startswith("the disk is full: the checkpoint of step 3 was not written to")
    assert "the last good one is step-00000002; free some space" in message
    assert "\n" not in message
    assert {path.name: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert newest(folder) == (2, [])


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"was not written to .*: .*; there is none before"):
        save_checkpoint(tmp_path / "file" / "checkpoints", 1, state_of(1))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    "write", [torch.save, lambda state, file: pickle.dump(state, file, protocol=2)]
)
def test_a_checkpoint_cannot_run_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = folder / "step-00000002"
    with open(checkpoint / "state.pt", "wb") as file:
        write({"step": Bomb()}, file)
    digest = hashlib.sha256((checkpoint / "state.pt").read_bytes()).hexdigest()
    (checkpoint / "sha256").write_text(f"{digest}  state.pt\n")
    with pytest.raises(CheckpointError, match="is damaged") as caught:
        load_checkpoint(checkpoint)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "exploded").exists()
