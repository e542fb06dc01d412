"""Sharded checkpoints: written as a whole or not at all, and read without running code.

Here one process writes and reads them; several do in test_parallel.py.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import VIT

from patchwords.errors import CheckpointError
from patchwords.models.build import build_model
from patchwords.training.engine import checkpoint
from patchwords.training.engine.ema import EMA
from patchwords.training.engine.sharded_checkpoint import (
    load_sharded_checkpoint,
    open_async_writer,
    save_sharded_checkpoint,
)
from patchwords.training.engine.state import TrainState

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
ABOUT = {"architecture": {"width": 14}, "data": "a fingerprint"}


def state_of(step: int) -> TrainState:
    """A state like a run's: weights, moments, EMA, best so far, skipped images."""
    torch.manual_seed(step)
    model = build_model(VIT)
    optimizer = torch.optim.AdamW(model.parameters())
    sum((p * torch.randn_like(p)).sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    best = {"step": step, "weights": {n: v.clone() for n, v in model.state_dict().items()}}
    skipped = {"ä/b.png": "truncated"}
    return TrainState(model, optimizer, EMA(model, 0.9), 4, step, 1.5, skipped, best)


def save(folder: Path, step: int) -> None:
    with open_async_writer() as writer:
        save_sharded_checkpoint(folder, state_of(step), ABOUT, writer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        save(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """(step of the state that training would resume from, warnings)"""
    warnings: list[str] = []
    state = state_of(9)
    saved = checkpoint.load_latest_checkpoint(
        folder, warnings.append, lambda path: load_sharded_checkpoint(path, state)
    )
    return (None if saved is None else saved["step"]), warnings


def test_round_trip_is_bit_exact(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]
    saved = load_sharded_checkpoint(folder / "step-00000003", state_of(9))
    assert same(saved, {**state_of(3).to_dict(), **ABOUT})


def test_the_checksums_are_those_that_sha256sum_reads(folder: Path) -> None:
    place = folder / "step-00000003"
    listed = dict(
        reversed(line.split("  ")) for line in (place / "sha256").read_text().splitlines()
    )
    assert listed.keys() == {path.name for path in place.iterdir()} - {"sha256"}
    for name, digest in listed.items():
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", ["plain.pt", "__0_0.distcp", ".metadata", "sha256"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    folder: Path, damage: Callable[[Path], None], name: str
) -> None:
    damage(folder / "step-00000003" / name)
    step, warnings = newest(folder)
    assert step == 2
    assert len(warnings) == 1
    assert "step-00000003" in warnings[0]
    assert warnings[0].endswith("; trying the one before")
    assert "\n" not in warnings[0]


def sign(place: Path, name: str) -> None:
    """Make the checksum of a file that of its content now."""
    sums = checkpoint.read_checksums(place / "sha256")
    sums[name] = checkpoint.compute_checksum(place / name)
    (place / "sha256").write_text("".join(f"{digest}  {n}\n" for n, digest in sums.items()))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("name", ["plain.pt", ".metadata"])
def test_a_checkpoint_cannot_run_code(
    folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = folder / "step-00000003"
    with open(place / name, "wb") as file:
        (torch.save if name == "plain.pt" else pickle.dump)({"values": Bomb()}, file)
    sign(place, name)
    with pytest.raises(CheckpointError, match="step-00000003 is damaged") as caught:
        load_sharded_checkpoint(place, state_of(9))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "exploded").exists()


def test_a_full_disk_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    for where in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, where, full)
            with pytest.raises(CheckpointError, match="the disk is full: the checkpoint of step 4"):
                save(folder, 4)
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["step-00000002", "step-00000003"]
    assert newest(folder) == (3, [])


def test_leftovers_of_a_killed_process_are_deleted(folder: Path) -> None:
    (folder / ".step-00000004.part" / "deep").mkdir(parents=True)
    save(folder, 5)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["step-00000003", "step-00000005"]
