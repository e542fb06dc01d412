"""Checkpoints of a model that is divided among processes: each writes its shares.

    step-00000300/
      plain.pt            what is no tensor, and where each tensor belongs
      __0_0.distcp ...    the shares of process 0, and so on (torch.distributed.checkpoint)
      .metadata           which piece of which tensor is in which file
      sha256              checksums of them all

They are written behind the training (behind.py): a save copies the shares of its step into the
memory of the host, and a thread writes the copy while further steps are taken.

They can be read by any number of processes, divided or not: pieces are put together as they are
needed. Like state.pt they cannot run code: tensors are read with `weights_only=True`, and of the
pickled .metadata only the types that belong there are made.
"""

from __future__ import annotations

import pickle
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from patchwords.distributed import (
    ProcessGroup,
    all_gather_objects,
    get_world,
    run_on_all_processes,
    run_on_main_process,
    thread_process_group,
)
from patchwords.errors import CheckpointError, PatchwordsError
from patchwords.training.engine import checkpoint
from patchwords.training.engine.parallel import shard_like
from patchwords.training.engine.step import TrainState

# Writing behind the training: one write at a time, in a thread, while steps are taken.
#
# The processes of a run begin their writes at the same step, and their threads exchange by a group of
# their own: two threads that used one group would take each other's messages.
#
# A write that fails is never lost: what it raised is raised by the next `finish`, in the main thread.


class AsyncWriter:
    """The thread, and what became of its last write."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def begin(self, write: Callable[[ProcessGroup], None]) -> None:
        """Call `write` with the threads' group, and do not wait for it.

        All processes begin together, each after it has called `finish`. What is to be written must
        be a copy, as training changes its tensors in place.
        """
        assert self.thread is None, "the write before this one has to be finished"

        def run() -> None:
            try:
                write(self.group)
            except BaseException as error:
                self.error = error

        # A daemon: a process that is told to stop at once does not wait for it.
        self.thread = threading.Thread(target=run, name="writer", daemon=True)
        self.thread.start()

    def finish(self) -> None:
        """Wait for the write under way, if there is one; raises what it raised, once."""
        if self.thread is None:
            return
        self.thread.join()
        error, self.thread, self.error = self.error, None, None
        if error is not None:
            raise error

    def finish_after(self, error: Exception) -> None:
        """As `finish`, where an error has ended the training; none of the two is lost."""
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
    """Inside, one write at a time may go on; the last is waited for, also where an error ends it.

    KeyboardInterrupt alone does not wait: it is of a person who has asked twice.
    """
    with thread_process_group() as group:
        writer = AsyncWriter(group)
        try:
            yield writer
        except Exception as error:
            writer.finish_after(error)
            raise
        writer.finish()


Value = TypeVar("Value")

PLAIN, CONTENTS = "plain.pt", ".metadata"
METADATA_TYPES = {  # what a .metadata is made of
    ("torch.distributed.checkpoint.metadata", name)
    for name in (
        *("Metadata", "StorageMeta", "MetadataIndex", "TensorStorageMetadata"),
        *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(("torch", name) for name in ("Size", "float32", "float64", "int64")),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}


@dataclass(frozen=True)
class StateCopy:
    """The state of one step, which training changes no more."""

    step: int
    plain: dict[str, Any]  # what is no tensor, and where each tensor belongs
    tensors: dict[str, Tensor]  # in the memory of the host; of a divided one, its share here


def save_sharded_checkpoint(
    folder: Path, state: TrainState, about: dict[str, Any], writer: AsyncWriter
) -> None:
    """Copy the state, and what it is about, and have the copy written behind the training.

    All processes call it. It waits for the write before, and raises in all what that has raised.
    """
    writer.finish()  # first, so that there is never more than one copy
    copied = copy_state(state, about)
    writer.begin(lambda group: write_sharded_checkpoint(folder, copied, group))


def copy_state(state: TrainState, about: dict[str, Any]) -> StateCopy:
    saved = {**state.to_dict(), **about}
    found = list(iterate_tensors(saved))
    plain = {
        "values": strip_tensors(saved),
        "places": {name: list(path) for name, path, _ in found},
    }
    return StateCopy(
        state.step, plain, {name: value.to("cpu", copy=True) for name, _, value in found}
    )


def write_sharded_checkpoint(folder: Path, copied: StateCopy, group: ProcessGroup) -> None:
    """Write it by the group of the threads that do; all raise if one fails."""
    step = copied.step
    part = folder / f".step-{step:08d}.part"

    def begin() -> None:
        checkpoint.begin_checkpoint(folder, step)
        checkpoint.write_state_file(part / PLAIN, copied.plain)

    def shares() -> None:
        # Nothing is left to copy from a GPU: to look for one would be to take memory on the first.
        files = dcp.FileSystemWriter(part, per_thread_copy_ahead=0)
        try:
            dcp.save(copied.tensors, storage_writer=files, process_group=group)
        except CheckpointException as error:  # raised in all processes
            cause = next(iter(error.failures.values()))[0]
            raise CheckpointError(
                checkpoint.explain_checkpoint_error(cause, folder, step)
            ) from error

    def guarded(action: Callable[[], Value]) -> Value:
        try:
            return action()
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                checkpoint.explain_checkpoint_error(error, folder, step)
            ) from error

    try:
        run_on_main_process(lambda: guarded(begin), group)
        run_on_all_processes(shares, group)
        sums = all_gather_objects(
            run_on_all_processes(lambda: guarded(lambda: checksum_own_files(part)), group), group
        )
        every = {name: digest for some in sums for name, digest in some.items()}
        run_on_main_process(
            lambda: guarded(lambda: checkpoint.commit_checkpoint(part, step, every)), group
        )
    except CheckpointError:  # raised by all: nobody works on it any more
        if get_world().is_main:
            shutil.rmtree(part, ignore_errors=True)
        raise


def load_sharded_checkpoint(folder: Path, state: TrainState) -> dict[str, Any]:
    """What is in one checkpoint, of whichever kind, divided as `state` is; all processes call it.

    Raises CheckpointError where it is damaged.
    """
    if not (folder / CONTENTS).exists():
        saved = checkpoint.load_checkpoint(folder)
        for _, path, value in list(iterate_tensors(saved)):
            set_nested_value(saved, path, shard_like(value, find_parameter(path, state)))
        return saved
    run_on_all_processes(lambda: verify_sharded_checkpoint(folder))
    try:
        plain = torch.load(folder / PLAIN, map_location="cpu", weights_only=True)
        contents = SafeMetadataReader(folder).read_metadata().state_dict_metadata
        saved, found = plain["values"], {}
        for name, path in plain["places"].items():
            found[name] = allocate_tensor(contents[name], find_parameter(path, state))
        with warnings.catch_warnings():  # that one process is alone, which is what is meant
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.load(
                found, storage_reader=SafeMetadataReader(folder), no_dist=get_world().size == 1
            )
    except (*checkpoint.DAMAGE_ERRORS, KeyError, CheckpointException) as error:
        raise CheckpointError(f"{folder} is damaged: {error}".splitlines()[0]) from error
    for name, path in plain["places"].items():
        set_nested_value(saved, path, found[name])
    return saved


def verify_sharded_checkpoint(folder: Path) -> None:
    """Compare the checksums; each process takes some of the files."""
    try:
        sums = checkpoint.read_checksums(folder)
        if not {PLAIN, CONTENTS} <= sums.keys():
            raise CheckpointError(f"{folder} is damaged: its list of checksums is cut short")
        mine = list(sums)[get_world().rank :: get_world().size]
        checkpoint.verify_checksums(folder, {name: sums[name] for name in mine})
    except checkpoint.DAMAGE_ERRORS as error:
        raise CheckpointError(f"{folder} is damaged: {error}".splitlines()[0]) from error


def checksum_own_files(part: Path) -> dict[str, str]:
    """The checksums of the files that this process has written."""
    names = [path.name for path in part.glob(f"__{get_world().rank}_*.distcp")]
    names += [PLAIN, CONTENTS] if get_world().is_main else []
    return {name: checkpoint.compute_checksum(part / name) for name in names}


def iterate_tensors(
    table: Mapping[Any, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[str, tuple[Any, ...], Tensor]]:
    """(name, keys that lead there, tensor) of all tensors in nested tables."""
    for key, value in table.items():
        if isinstance(value, Tensor):
            yield "/".join(map(str, (*path, key))), (*path, key), value
        elif isinstance(value, dict):
            yield from iterate_tensors(value, (*path, key))


def strip_tensors(table: Mapping[Any, Any]) -> dict[Any, Any]:
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
    """The parameter that a saved tensor belongs to: weights by name, moments by number."""
    if path[0] == "optimizer":
        groups = state.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        return parameters[path[2]] if path[2] < len(parameters) else None
    weights: dict[str, Tensor] = state.model.state_dict()
    return weights.get(path[-1])


def allocate_tensor(contents: Any, parameter: Tensor | None) -> Tensor:
    """An empty tensor to read into, divided as the parameter is if it is of its shape."""
    if not isinstance(contents, TensorStorageMetadata):
        raise ValueError("a value that is no tensor is among the tensors")
    dtype = contents.properties.dtype
    if parameter is not None and parameter.shape == contents.size:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(contents.size, dtype=dtype)


class SafeMetadataReader(dcp.FileSystemReader):
    """Reads the table of contents without running what it may hold."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(Path(self.path) / CONTENTS, "rb") as file:
            contents: Metadata = MetadataUnpickler(file).load()
        if contents.storage_meta is not None:
            contents.storage_meta.load_id = self.load_id
        return contents


class MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in METADATA_TYPES:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in {CONTENTS}")
        return super().find_class(module, name)
