"""Checkpoints of a sharded model: each process writes its shards, in the background.

    step-00000300/
      plain.pt            values that are not tensors, and the place of each tensor
      __0_0.distcp ...    the shards of process 0, and so on (torch.distributed.checkpoint)
      .metadata           the file of each piece of each tensor
      sha256              checksums of all files

A save copies the shards of its step into the memory of the host; `dcp.async_save` writes the copy
in a thread while training goes on. The threads of all processes exchange by a process group of
their own: two threads that shared one would take each other's messages.

Any number of processes can read a checkpoint, sharded or not. Like state.pt it cannot run code:
tensors are read with `weights_only=True`, and from the pickled .metadata only data classes of
torch.distributed.checkpoint are made.
"""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from patchwords.distributed import (
    ProcessGroup,
    get_world,
    run_on_all_processes,
    thread_process_group,
)
from patchwords.errors import CheckpointError, PatchwordsError
from patchwords.training.engine import checkpoint
from patchwords.training.engine.parallel import shard_like
from patchwords.training.engine.state import TrainState

PLAIN, METADATA = "plain.pt", ".metadata"
METADATA_MODULES = (  # of whose data classes and enums a .metadata is made
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
)
METADATA_NAMES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}


class ShardWriter(dcp.FileSystemWriter):
    """Storage of one checkpoint: a hidden folder, renamed once every process has written.

    torch calls the methods in the background thread: `prepare_global_plan` and `finish` in the
    main process, `write_data` in all. An error in one process is raised in all.
    """

    def __init__(self, folder: Path, step: int, plain: dict[str, Any]) -> None:
        self.folder, self.step, self.plain = folder, step, plain
        self.part = folder / f".step-{step:08d}.part"
        super().__init__(self.part)

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        return plan  # the main process makes the folder

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        with self.explained():
            checkpoint.begin_checkpoint(self.folder, self.step)
            checkpoint.write_state_file(self.part / PLAIN, self.plain)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> Any:
        """Write the shards of this process, and their checksums for `finish`."""
        rank = get_world().rank
        with self.explained():
            written = super().write_data(plan, planner)
            written.wait()
            names = [path.name for path in self.part.glob(f"__{rank}_*.distcp")]
            checkpoint.write_checksums(
                self.part / f"sha256-{rank}", compute_checksums(self.part, names)
            )
        return written

    def finish(self, metadata: Metadata, results: Any) -> None:
        """Write .metadata and the checksums of all files, and rename the folder."""
        with self.explained():
            super().finish(metadata, results)
            sums = compute_checksums(self.part, [PLAIN, METADATA])
            for path in sorted(self.part.glob("sha256-*")):
                sums |= checkpoint.read_checksums(path)
                path.unlink()
            checkpoint.commit_checkpoint(self.part, self.step, sums)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn a failed write into one line for the user, before it travels to other processes."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            raise CheckpointError(self.explain(error)) from error

    def explain(self, error: BaseException) -> str:
        return checkpoint.explain_checkpoint_error(error, self.folder, self.step)


class AsyncWriter:
    """At most one write in the background; its failure is raised by the next `finish`."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.write: tuple[ShardWriter, Future[Any]] | None = None

    def begin(self, tensors: dict[str, Tensor], storage: ShardWriter) -> None:
        """Copy the tensors and begin to write the copy; all processes begin together."""
        assert self.write is None, "the write before this one has to be finished"
        future = dcp.async_save(tensors, storage_writer=storage, process_group=self.group)
        self.write = storage, cast("Future[Any]", future)

    def finish(self) -> None:
        """Wait for the write under way, if there is one; raises its error, once."""
        if self.write is None:
            return
        (storage, future), self.write = self.write, None
        try:
            future.result()
        except CheckpointException as error:  # raised in all processes: none writes any more
            if get_world().is_main:
                shutil.rmtree(storage.part, ignore_errors=True)
            cause = next(iter(error.failures.values()))[0]
            reason = str(cause) if isinstance(cause, CheckpointError) else storage.explain(cause)
            raise CheckpointError(reason) from error

    def finish_after(self, error: Exception) -> None:
        """Wait like `finish` after an error has ended the training; neither error is lost."""
        try:
            self.finish()
        except PatchwordsError as failure:
            if not isinstance(error, PatchwordsError):
                raise error from failure
            raise CheckpointError(f"{failure}; training had ended: {error}") from error
        except Exception as failure:
            if not isinstance(error, PatchwordsError):
                raise error from failure
            raise failure from error


@contextmanager
def open_async_writer() -> Iterator[AsyncWriter]:
    """Inside, a writer whose last write is waited for, also after an error.

    KeyboardInterrupt, the user's second Ctrl-C, does not wait: `exit_process` ends the process
    without its threads.
    """
    with thread_process_group() as group:
        writer = AsyncWriter(group)
        try:
            yield writer
        except Exception as error:
            writer.finish_after(error)
            raise
        writer.finish()


def save_sharded_checkpoint(
    folder: Path, state: TrainState, about: dict[str, Any], writer: AsyncWriter
) -> None:
    """Copy the state, and what describes its run, and write the copy in the background.

    All processes call it. It waits for the previous write and raises the error of that.
    """
    writer.finish()  # first, so that there is never more than one copy
    saved = {**state.to_dict(), **about}
    tensors = list(iterate_tensors(saved))
    plain = {
        "values": strip_tensors(saved),
        "places": {name: list(path) for name, path, _ in tensors},
    }
    storage = ShardWriter(folder, state.step, plain)
    writer.begin({name: value for name, _, value in tensors}, storage)


def load_sharded_checkpoint(folder: Path, state: TrainState) -> dict[str, Any]:
    """Read one checkpoint, sharded or not, into shards like those of `state`.

    All processes call it. Raises CheckpointError if the checkpoint is damaged.
    """
    if not (folder / METADATA).exists():
        saved = checkpoint.load_checkpoint(folder)
        for _, path, value in list(iterate_tensors(saved)):
            set_nested_value(saved, path, shard_like(value, find_parameter(path, state)))
        return saved
    run_on_all_processes(lambda: verify_sharded_checkpoint(folder))
    try:
        plain = torch.load(folder / PLAIN, map_location="cpu", weights_only=True)
        contents = SafeMetadataReader(folder).read_metadata().state_dict_metadata
        saved = plain["values"]
        tensors = {
            name: allocate_tensor(contents[name], find_parameter(path, state))
            for name, path in plain["places"].items()
        }
        with warnings.catch_warnings():  # that one process works alone, which is intended
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.load(
                tensors, storage_reader=SafeMetadataReader(folder), no_dist=get_world().size == 1
            )
    except (*checkpoint.DAMAGE_ERRORS, KeyError, CheckpointException) as error:
        raise CheckpointError(f"{folder} is damaged: {error}".splitlines()[0]) from error
    for name, path in plain["places"].items():
        set_nested_value(saved, path, tensors[name])
    return saved


def verify_sharded_checkpoint(folder: Path) -> None:
    """Compare the checksums of all files; each process takes some of them."""
    try:
        sums = checkpoint.read_checksums(folder / checkpoint.CHECKSUMS)
        if not {PLAIN, METADATA} <= sums.keys():
            raise CheckpointError(f"{folder} is damaged: its list of checksums is cut short")
        mine = list(sums)[get_world().rank :: get_world().size]
        checkpoint.verify_checksums(folder, {name: sums[name] for name in mine})
    except checkpoint.DAMAGE_ERRORS as error:
        raise CheckpointError(f"{folder} is damaged: {error}".splitlines()[0]) from error


def compute_checksums(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: checkpoint.compute_checksum(folder / name) for name in names}


def iterate_tensors(
    table: Mapping[Any, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[str, tuple[Any, ...], Tensor]]:
    """Yield (name, path of keys, tensor) for every tensor in nested tables."""
    for key, value in table.items():
        if isinstance(value, Tensor):
            yield "/".join(map(str, (*path, key))), (*path, key), value
        elif isinstance(value, dict):
            yield from iterate_tensors(value, (*path, key))


def strip_tensors(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copy nested tables without their tensors."""
    return {
        key: strip_tensors(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if not isinstance(value, Tensor)
    }


def set_nested_value(table: dict[Any, Any], path: Sequence[Any], value: Tensor) -> None:
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value


def find_parameter(path: Sequence[Any], state: TrainState) -> Tensor | None:
    """Return the parameter of a saved tensor: weights by name, moments by number."""
    if path[0] == "optimizer":
        groups = state.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        return parameters[path[2]] if path[2] < len(parameters) else None
    weights: dict[str, Tensor] = state.model.state_dict()
    return weights.get(path[-1])


def allocate_tensor(contents: Any, parameter: Tensor | None) -> Tensor:
    """Make an empty tensor to read into, sharded like a parameter of its shape."""
    if not isinstance(contents, TensorStorageMetadata):
        raise ValueError("a value among the tensors is not a tensor")
    dtype = contents.properties.dtype
    if parameter is not None and parameter.shape == contents.size:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(contents.size, dtype=dtype)


class SafeMetadataReader(dcp.FileSystemReader):
    """A reader that unpickles .metadata without running code in it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(Path(self.path) / METADATA, "rb") as file:
            contents: Metadata = MetadataUnpickler(file).load()
        if contents.storage_meta is not None:
            contents.storage_meta.load_id = self.load_id
        return contents


class MetadataUnpickler(pickle.Unpickler):
    """An unpickler that makes plain data only: torch's data classes, enums and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in METADATA_NAMES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in METADATA_MODULES and "." not in name:
            kind = super().find_class(module, name)
            is_data = isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum))
            if is_data and kind.__module__ == module:
                return kind
        raise pickle.UnpicklingError(f"{module}.{name} has no place in {METADATA}")
