"""Sharded checkpoints written while training goes on: six steps, saved after 3 and 6."""

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

from patchwords.distributed import get_world
from patchwords.errors import DataError, PatchwordsError
from patchwords.training.engine import checkpoint, sharded_checkpoint
from patchwords.training.engine.parallel import to_local_tensor
from patchwords.training.engine.sharded_checkpoint import ShardWriter
from patchwords.training.engine.state import TrainState
from patchwords.training.engine.step import train_step
from patchwords.training.objectives import Objective
from patchwords.training.training_run import TrainingRun

PATIENCE = 60.0  # seconds for training to go on while a write is held back
FOR_GOOD = 3600.0  # seconds that no process of a test lives
Snapshot = tuple[dict[str, Tensor], dict[Any, Any]]  # a process's part of a state: tensors, rest


def job_of(folder: Path) -> TrainingRun:
    """Adam's moments, an average and the best so far are in its state; evaluated after step 4."""
    config = config_of()
    recipe = replace(config.recipe, steps=6, batch_size=12, optimizer="adamw", early_stop=9)
    machine = replace(config.machine, parallel="fsdp", eval_every=4, save_every=3)
    return assemble(folder, replace(config, recipe=recipe, machine=machine))


def snapshot(saved: dict[str, Any]) -> Snapshot:
    tensors = {
        name: to_local_tensor(value).clone()
        for name, _, value in sharded_checkpoint.iterate_tensors(saved)
    }
    return tensors, copy.deepcopy(sharded_checkpoint.strip_tensors(saved))


def same(a: Snapshot, b: Snapshot) -> bool:
    """Values that are not tensors are the main process's: others waited for other seconds."""
    alike = a[0].keys() == b[0].keys() and (a[1] == b[1] or not get_world().is_main)
    return alike and all(torch.equal(value, b[0][name]) for name, value in a[0].items())


@contextmanager
def saved_states() -> Iterator[dict[int, Snapshot]]:
    """Inside, each state as it was when it was saved."""
    states, save = {}, sharded_checkpoint.save_sharded_checkpoint

    def note(folder: Path, state: TrainState, about: dict[str, Any], *others: Any) -> None:
        states[state.step] = snapshot({**state.to_dict(), **about})
        save(folder, state, about, *others)

    with mock.patch.object(sharded_checkpoint, "save_sharded_checkpoint", note):
        yield states


def write_after(wait: Callable[[int], object]) -> AbstractContextManager[object]:
    """Inside, the background thread waits before it writes the checkpoint of a step."""
    prepare = ShardWriter.prepare_local_plan

    def held_back(self: ShardWriter, plan: dcp.SavePlan) -> dcp.SavePlan:
        wait(self.step)
        return prepare(self, plan)

    return mock.patch.object(ShardWriter, "prepare_local_plan", held_back)


def kept(job: TrainingRun, states: dict[int, Snapshot]) -> dict[str, bool]:
    """Checkpoint -> whether it is the state of its step, bit for bit."""
    load = sharded_checkpoint.load_sharded_checkpoint
    names = sorted(path.name for path in job.folder.checkpoints.iterdir())
    return {
        name: same(
            snapshot(load(job.folder.checkpoints / name, job.state)),
            states[step],
        )
        for name in names
        for step in [int(name.rpartition("-")[2])]
    }


def outcome(job: TrainingRun, evaluate: Evaluate | None = None) -> dict[str, Any]:
    """Train to the end; -> the error, and the checkpoints that exist once it was raised."""
    error = None
    with saved_states() as states:
        try:
            go(job, evaluate)
        except PatchwordsError as failure:
            error = f"{type(failure).__name__}: {failure}"
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
        result = outcome(job)
    return {**result, "reached": reached}


FAILING: dict[str, tuple[object, str, int]] = {  # in which process
    "plain": (checkpoint, "write_state_file", 0),
    "shards": (dcp.FileSystemWriter, "write_data", 1),
    "sums": (checkpoint, "compute_checksum", 1),
    "rename": (os, "replace", 0),
}


def fails(folder: Path) -> dict[str, Any]:
    """The write of step 3 fails, at each point where one may."""
    folder.mkdir(exist_ok=True)
    outcomes = {}
    for name in FAILING:
        with failing(name, 3):
            outcomes[name] = outcome(job_of(folder / name))
    return outcomes


@contextmanager
def failing(name: str, at: int, wait: float = 0) -> Iterator[None]:
    place, function, rank = FAILING[name]
    real, writing = getattr(place, function), []

    def begin(step: int) -> None:
        writing.append(step)
        time.sleep(wait)

    def fail(*args: Any) -> Any:
        background = threading.current_thread() is not threading.main_thread()
        if background and writing[-1:] == [at] and get_world().rank == rank:
            raise OSError(28, "No space left on device")
        return real(*args)

    with write_after(begin), mock.patch.object(place, function, fail):
        yield


def fails_at_the_end(folder: Path) -> dict[str, Any]:
    with failing("shards", 6):
        return outcome(job_of(folder))


def interrupted(folder: Path) -> dict[str, Any]:
    """SIGTERM reaches process 1 during step 5, and the write that follows takes long."""

    def step(state: TrainState, objective: Objective, *others: Any) -> Any:
        if get_world().rank == 1 and state.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(state, objective, *others)

    slowly = write_after(lambda step: time.sleep(0.3))
    with slowly, mock.patch("patchwords.training.engine.loop.train_step", step):
        return outcome(job_of(folder))


def stopped_by_an_error(folder: Path) -> dict[str, Any]:
    """An error after step 4 ends the training while the checkpoint of step 3 is written."""
    with write_after(lambda step: time.sleep(0.3)):
        return outcome(job_of(folder), gone)


def stopped_by_an_error_and_failed(folder: Path) -> dict[str, Any]:
    """The same, and the write fails."""
    with failing("rename", 3, wait=0.3):
        return outcome(job_of(folder), gone)


def gone(*args: Any) -> dict[str, Any]:
    raise DataError("the images are gone")


def stopped_twice(folder: Path) -> dict[str, Any]:
    """A second Ctrl-C after step 4, while the write of step 3 is held back for good."""
    with write_after(lambda step: time.sleep(FOR_GOOD)):
        go(job_of(folder), second_ctrl_c)
    return {}


def second_ctrl_c(*args: Any) -> dict[str, Any]:
    raise KeyboardInterrupt


def dies_writing(folder: Path) -> dict[str, Any]:
    """Process 1 is killed during the write of step 6."""
    write = dcp.FileSystemWriter.write_data

    def die(self: dcp.FileSystemWriter, *args: Any) -> Any:
        if get_world().rank == 1 and Path(self.path).name == ".step-00000006.part":
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, *args)

    with mock.patch.object(dcp.FileSystemWriter, "write_data", die):
        return outcome(job_of(folder))


ASYNC_CHECKPOINT: dict[str, Callable[[Path], dict[str, Any]]] = {
    "trains_on": trains_on,
    "fails": fails,
    "fails_at_the_end": fails_at_the_end,
    "interrupted": interrupted,
    "stopped_by_an_error": stopped_by_an_error,
    "stopped_by_an_error_and_failed": stopped_by_an_error_and_failed,
    "dies_writing": dies_writing,
    "stopped_twice": stopped_twice,
}
