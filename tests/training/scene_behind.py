"""Checkpoints in shares, written while the processes train on: six steps, saved after 3 and 6."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from tiny_run import Evaluate, assemble, config_of, go
from torch import Tensor

from patchwords.distributed import ProcessGroup, get_world
from patchwords.errors import DataError, PatchwordsError
from patchwords.training.engine import checkpoint
from patchwords.training.engine import sharded_checkpoint as shares
from patchwords.training.engine.parallel import to_local_tensor
from patchwords.training.engine.state import TrainState
from patchwords.training.engine.step import train_step
from patchwords.training.objectives import Objective
from patchwords.training.training_run import TrainingRun

PATIENCE = 60.0  # seconds for training to get on while a write is held back
Held = tuple[dict[str, Tensor], dict[Any, Any]]  # what a process has of a state: tensors, the rest


def job_of(folder: Path) -> TrainingRun:
    """Adam's moments, an average and the best so far are in its state; evaluated after step 4."""
    config = config_of()
    recipe = replace(config.recipe, steps=6, batch_size=12, optimizer="adamw", early_stop=9)
    machine = replace(config.machine, parallel="fsdp", eval_every=4, save_every=3)
    return assemble(folder, replace(config, recipe=recipe, machine=machine))


def held_of(saved: dict[str, Any]) -> Held:
    found = {
        name: to_local_tensor(value).clone() for name, _, value in shares.iterate_tensors(saved)
    }
    return found, copy.deepcopy(shares.strip_tensors(saved))


def same(one: Held, other: Held) -> bool:
    """What is no tensor is that of the main process: others have waited for other seconds."""
    alike = one[0].keys() == other[0].keys() and (one[1] == other[1] or not get_world().is_main)
    return alike and all(torch.equal(value, other[0][name]) for name, value in one[0].items())


@contextmanager
def noted() -> Iterator[dict[int, Held]]:
    """Inside, what each state was when it was saved."""
    states, save = {}, shares.save_sharded_checkpoint

    def note(folder: Path, state: TrainState, about: dict[str, Any], *others: Any) -> None:
        states[state.step] = held_of({**state.to_dict(), **about})
        save(folder, state, about, *others)

    with mock.patch.object(shares, "save_sharded_checkpoint", note):
        yield states


def write_after(wait: Callable[[int], object]) -> AbstractContextManager[object]:
    """Inside, the thread waits before it writes the checkpoint of a step."""
    write = shares.write_sharded_checkpoint

    def held_back(folder: Path, copied: shares.StateCopy, group: ProcessGroup) -> None:
        assert group is not None  # that is the one by which training exchanges
        wait(copied.step)
        write(folder, copied, group)

    return mock.patch.object(shares, "write_sharded_checkpoint", held_back)


def kept(job: TrainingRun, states: dict[int, Held]) -> dict[str, bool]:
    """Checkpoint -> whether it is the state of its step, bit for bit."""
    names = sorted(path.name for path in job.folder.checkpoints.iterdir())
    return {
        name: same(
            held_of(shares.load_sharded_checkpoint(job.folder.checkpoints / name, job.state)),
            states[step],
        )
        for name in names
        for step in [int(name.rpartition("-")[2])]
    }


def outcome(job: TrainingRun, evaluate: Evaluate | None = None) -> dict[str, Any]:
    """Train to the end; -> the error, and what was there once it was raised."""
    error = None
    with noted() as states:
        try:
            go(job, evaluate)
        except PatchwordsError as found:
            error = f"{type(found).__name__}: {found}"
        return {"error": error, "step": job.state.step, "kept": kept(job, states)}


def trains_on(folder: Path) -> dict[str, Any]:
    """The write of step 3 begins after step 5 only."""
    job, reached = job_of(folder), []

    def wait(step: int) -> None:
        until = time.monotonic() + PATIENCE
        while step == 3 and job.state.step < 5 and time.monotonic() < until:
            time.sleep(0.01)
        reached.append(job.state.step)

    with write_after(wait):
        found = outcome(job)
    return {**found, "reached": reached}


FAILING: dict[str, tuple[object, str, int]] = {  # in which process
    "plain": (checkpoint, "write_state_file", 0),
    "shares": (dcp.FileSystemWriter, "write_data", 1),
    "sums": (checkpoint, "compute_checksum", 1),
    "rename": (os, "replace", 0),
}


def fails(folder: Path) -> dict[str, Any]:
    """The write of step 3, in each place where one may fail."""
    folder.mkdir(exist_ok=True)
    found = {}
    for name in FAILING:
        with failing(name, 3):
            found[name] = outcome(job_of(folder / name))
    return found


@contextmanager
def failing(name: str, at: int, wait: float = 0) -> Iterator[None]:
    place, function, rank = FAILING[name]
    real, writing = getattr(place, function), []

    def begin(step: int) -> None:
        writing.append(step)
        time.sleep(wait)

    def fail(*args: Any) -> Any:
        behind = threading.current_thread() is not threading.main_thread()
        if behind and writing[-1:] == [at] and get_world().rank == rank:
            raise OSError(28, "No space left on device")
        return real(*args)

    with write_after(begin), mock.patch.object(place, function, fail):
        yield


def fails_at_the_end(folder: Path) -> dict[str, Any]:
    with failing("shares", 6):
        return outcome(job_of(folder))


def interrupted(folder: Path) -> dict[str, Any]:
    """SIGTERM reaches process 1 in the midst of step 5; to write what that asks for takes long."""

    def step(state: TrainState, objective: Objective, *others: Any) -> Any:
        if get_world().rank == 1 and state.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(state, objective, *others)

    slowly = write_after(lambda step: time.sleep(0.3))
    with slowly, mock.patch("patchwords.training.engine.loop.train_step", step):
        return outcome(job_of(folder))


def broken_off(folder: Path) -> dict[str, Any]:
    """After step 4 training ends by an error, while the checkpoint of step 3 is being written."""
    with write_after(lambda step: time.sleep(0.3)):
        return outcome(job_of(folder), gone)


def broken_off_and_failed(folder: Path) -> dict[str, Any]:
    """The same, and it cannot be written."""
    with failing("rename", 3, wait=0.3):
        return outcome(job_of(folder), gone)


def gone(*args: Any) -> dict[str, Any]:
    raise DataError("the images are gone")


def dies_writing(folder: Path) -> dict[str, Any]:
    """Process 1 is killed by its writing thread, in the midst of the checkpoint of step 6."""
    write = dcp.FileSystemWriter.write_data

    def die(self: dcp.FileSystemWriter, *args: Any) -> Any:
        if get_world().rank == 1 and Path(self.path).name == ".step-00000006.part":
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, *args)

    with mock.patch.object(dcp.FileSystemWriter, "write_data", die):
        return outcome(job_of(folder))


BEHIND: dict[str, Callable[[Path], dict[str, Any]]] = {
    "trains_on": trains_on,
    "fails": fails,
    "fails_at_the_end": fails_at_the_end,
    "interrupted": interrupted,
    "broken_off": broken_off,
    "broken_off_and_failed": broken_off_and_failed,
    "dies_writing": dies_writing,
}
