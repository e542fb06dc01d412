"""Checkpoints that survive kill -9, a full disk and a damaged file.

    checkpoints/
      step-00000300/
        state.pt        model, optimizer, average, step: tensors and plain values only
        sha256          checksum of state.pt, in the form that `sha256sum --check` reads
      step-00000400/    the newest two are kept

The folder of a sharded model holds several files in place of state.pt, each with its line in
sha256 (sharded_checkpoint.py).

A checkpoint is written into a folder with another name, flushed to the disk, and renamed: it
exists as a whole or not at all. It is read with `weights_only=True`, so it cannot run code.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from patchwords.errors import CheckpointError

KEEP_LATEST = 2
CHECKSUMS = "sha256"
# What reading a damaged file raises.
DAMAGE_ERRORS = (OSError, ValueError, IndexError, RuntimeError, pickle.UnpicklingError)


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state of `step` and drop the oldest; a failure leaves the others as they are."""
    try:
        part = begin_checkpoint(folder, step)
        write_state_file(part / "state.pt", state)
        return commit_checkpoint(part, step, {"state.pt": compute_checksum(part / "state.pt")})
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        raise abandon_checkpoint(error, folder, step) from error


def begin_checkpoint(folder: Path, step: int) -> Path:
    """Make an empty folder, under the name of an unfinished checkpoint."""
    for unfinished in folder.glob(".step-*.part"):  # of a process that was killed while writing
        shutil.rmtree(unfinished, ignore_errors=True)
    part = folder / f".step-{step:08d}.part"
    part.mkdir(parents=True)
    return part


def write_state_file(path: Path, state: dict[str, Any]) -> None:
    """Save tensors and plain values, flushed to the disk."""
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def commit_checkpoint(part: Path, step: int, sums: dict[str, str]) -> Path:
    """Write the checksums of the files (name -> sum), rename the folder, drop the oldest."""
    folder = part.parent
    final = folder / f"step-{step:08d}"
    write_checksums(part / CHECKSUMS, sums)
    shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step
    os.replace(part, final)
    _flush_folder(folder)
    for old in sorted(folder.glob("step-*"))[:-KEEP_LATEST]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def abandon_checkpoint(error: BaseException, folder: Path, step: int) -> CheckpointError:
    """Delete the unfinished checkpoint of a step; -> the error in one line."""
    shutil.rmtree(folder / f".step-{step:08d}.part", ignore_errors=True)
    return CheckpointError(explain_checkpoint_error(error, folder, step))


def load_latest_checkpoint(
    folder: Path,
    warn: Callable[[str], None],
    read: Callable[[Path], dict[str, Any]] | None = None,
) -> dict[str, Any] | None:
    """Load the newest undamaged checkpoint, or None if there are none; warn of damaged ones.

    `read` reads one checkpoint folder (default: `load_checkpoint`). Raises CheckpointError if
    every checkpoint is damaged.
    """
    checkpoints = sorted(folder.glob("step-*"), reverse=True)
    for checkpoint in checkpoints:
        try:
            return (read or load_checkpoint)(checkpoint)
        except CheckpointError as error:
            warn(f"{error}; trying the one before")
    if checkpoints:
        raise CheckpointError(f"no checkpoint in {folder} is whole; start again with --overwrite")
    return None


def load_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """Load one checkpoint folder; raises CheckpointError if it is damaged."""
    try:
        sums = read_checksums(checkpoint / CHECKSUMS)
        if sums.keys() != {"state.pt"}:
            raise CheckpointError(f"{checkpoint} is damaged: its checksum is not that of state.pt")
        verify_checksums(checkpoint, sums)
        state: dict[str, Any] = torch.load(
            checkpoint / "state.pt", map_location="cpu", weights_only=True
        )
        return state
    except DAMAGE_ERRORS as error:
        raise CheckpointError(f"{checkpoint} is damaged: {error}".splitlines()[0]) from error


def write_checksums(path: Path, sums: dict[str, str]) -> None:
    """Write checksums in the form that `sha256sum --check` reads, flushed to the disk."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
        file.flush()
        os.fsync(file.fileno())


def read_checksums(path: Path) -> dict[str, str]:
    """Read checksums by file name."""
    lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    return {name: digest for digest, name in lines}


def verify_checksums(checkpoint: Path, sums: dict[str, str]) -> None:
    """Raise CheckpointError if a file has changed."""
    for name, expected in sums.items():
        if compute_checksum(checkpoint / name) != expected:
            raise CheckpointError(f"{checkpoint / name} is damaged: its checksum differs")


def compute_checksum(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    """Flush a rename to the disk, so that it survives a loss of power."""
    if sys.platform == "win32":
        return  # no folder can be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain_checkpoint_error(error: BaseException, folder: Path, step: int) -> str:
    """Describe a failed write in one line, with the last good checkpoint."""
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
