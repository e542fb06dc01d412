"""Checkpoints that survive kill -9, a full disk and a damaged file.

    checkpoints/
      step-00000300/
        state.pt        model, optimizer, average, step: tensors and plain values only
        sha256          checksum of state.pt, in the form that `sha256sum --check` reads
      step-00000400/    the newest two are kept

A checkpoint is written into a folder with another name, flushed to the disk, and renamed: it is
there as a whole or not at all. It is read with `weights_only=True`, so it cannot run code.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from patchwords.errors import CheckpointError

KEEP = 2


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state of `step` and drop the oldest; raises CheckpointError, losing nothing."""
    final = folder / f"step-{step:08d}"
    part = folder / f".{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        with open(part / "state.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        with open(part / "sha256", "w") as file:
            file.write(f"{_checksum(part / 'state.pt')}  state.pt\n")
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step
        os.replace(part, final)
        _flush_folder(folder)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointError(_explain(error, folder, step)) from error
    for old in sorted(folder.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_latest(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest state that is whole, or None where there is none; damaged ones are named.

    Raises CheckpointError where there are checkpoints and every one is damaged.
    """
    found = sorted(folder.glob("step-*"), reverse=True)
    for checkpoint in found:
        try:
            return load(checkpoint)
        except CheckpointError as error:
            warn(f"{error}; trying the one before")
    if found:
        raise CheckpointError(f"no checkpoint in {folder} is whole; start again with --overwrite")
    return None


def load(checkpoint: Path) -> dict[str, Any]:
    """The state in one checkpoint folder; raises CheckpointError where it is damaged."""
    try:
        wanted = (checkpoint / "sha256").read_text().split()[0]
        if _checksum(checkpoint / "state.pt") != wanted:
            raise CheckpointError(f"{checkpoint / 'state.pt'} is damaged: its checksum differs")
        state: dict[str, Any] = torch.load(
            checkpoint / "state.pt", map_location="cpu", weights_only=True
        )
        return state
    except (OSError, ValueError, IndexError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{checkpoint} is damaged: {error}".splitlines()[0]) from error


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    """Make the rename itself last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(error: Exception, folder: Path, step: int) -> str:
    kept = sorted(path.name for path in folder.glob("step-*"))
    last = f"the last good one is {kept[-1]}" if kept else "there is none before it"
    # torch closes its archive in spite of a failed write, and then reports that instead.
    causes = (error, error.__context__)
    if any(getattr(cause, "errno", None) == errno.ENOSPC for cause in causes):
        return (
            f"the disk is full: the checkpoint of step {step} was not written to {folder}; "
            f"{last}; free some space and run the same command with --resume"
        )
    reason = str(error).splitlines()[0]
    return f"the checkpoint of step {step} was not written to {folder}: {reason}; {last}"
