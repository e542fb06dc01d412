"""Process groups of torchrun, and collective operations for small values.

torchrun says in the environment who a process is. A process that was not started by it is the
only one of its run: then there is no process group, and every function here does nothing but give
back what it was given.

Small things (counts, wishes, errors) travel between CPUs by gloo, so that asking for them does
not wait for a GPU; tensors on GPUs travel by NCCL. Everything here that exchanges must be called
by all processes, in the same order; another thread than the main one needs a group of its own.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from patchwords.errors import ConfigError, PatchwordsError, ProcessLost

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")
ProcessGroup = Any  # torch.distributed.ProcessGroup, or None: that of the main thread

# One process may write a checkpoint or open a large folder while the others wait for it.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
UNNAMED_RUN_ID = "none"  # torchrun's name for a run that was given none
# How gloo's errors speak of a process that is gone; NCCL's have a type of their own.
CONNECTION_LOST_MESSAGES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out",
)


@dataclass(frozen=True)
class World:
    """The rank of a process and the size of its run."""

    rank: int = 0
    local_rank: int = 0  # on its machine
    size: int = 1
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run folder and prints."""
        return self.rank == 0


def get_world() -> World:
    """Read rank and world size from the environment; raises ConfigError if incomplete."""
    if "WORLD_SIZE" not in os.environ:
        return World()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    try:
        rank, local_rank, size, local_size = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"WORLD_SIZE is set, but one of {', '.join(names)} is missing or no number: start "
            "several processes by torchrun, or unset WORLD_SIZE"
        ) from error
    return World(rank, local_rank, size, local_size)


def is_main_process() -> bool:
    """Return whether this is the main process, or the only one."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


@contextmanager
def join_process_group(cuda: bool) -> Iterator[World]:
    """Join the process group of the run; with `cuda`, each process has its own GPU.

    Where they can already, nothing is done.
    Raises ProcessLost where another process dies meanwhile, or does not answer in half an hour.
    """
    here = get_world()
    if here.size == 1 or _is_initialized():
        yield here
        return
    import torch.distributed as group

    if cuda:
        _set_cuda_device(here)
    group.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=_rendezvous_store(here),
        rank=here.rank,
        world_size=here.size,
        timeout=COLLECTIVE_TIMEOUT,
    )
    try:
        yield here
    except PatchwordsError:  # raised by all
        group.destroy_process_group()
        raise
    except RuntimeError as error:
        if isinstance(error, group.DistError) or any(
            s in str(error) for s in CONNECTION_LOST_MESSAGES
        ):
            raise ProcessLost(
                f"process {here.rank} of {here.size} has lost another one, which died or was "
                "stopped; the last checkpoint holds"
            ) from error
        raise
    else:
        group.destroy_process_group()


@contextmanager
def thread_process_group() -> Iterator[ProcessGroup]:
    """Make a second process group, for a thread of each process.

    It is gloo's, for what lies in the memory of the host. All processes enter together.
    """
    if not _is_initialized():
        yield None
        return
    import torch.distributed as group

    made = group.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    try:
        yield made
    except PatchwordsError:  # raised by all, as in `join_process_group`
        group.barrier()  # another one may still be reading what was sent last
        group.destroy_process_group(made)
        raise
    except Exception:  # left behind, it would abort the process at its end
        group.destroy_process_group(made)
        raise
    else:
        group.barrier()
        group.destroy_process_group(made)


def _rendezvous_store(here: World) -> Any:
    """Return the rendezvous store, a new one after each restart.

    torchrun keeps its store over restarts, with the addresses of processes that are gone. On one
    machine all processes count the restarts alike; on several the user has torchrun make a new
    store each time (docs/distributed.md).
    """
    from torch.distributed import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
    return (
        PrefixStore(f"start-{get_restart_count()}", store)
        if here.size == here.local_size
        else store
    )


def _set_cuda_device(here: World) -> None:
    import torch

    count = torch.cuda.device_count()
    if here.local_size > count:
        raise ConfigError(
            f"{here.local_size} processes share this machine's {count} GPUs: start "
            f"--nproc-per-node {count}, or say --device cpu"
        )
    torch.cuda.set_device(here.local_rank)


def run_on_all_processes(action: Callable[[], Value], by: ProcessGroup = None) -> Value:
    """Run an action; if it fails in some process, raise the first error in all.

    Only user-facing errors are told to the others. Any other ends this process, and with it the
    run: torchrun sees to that.
    """
    if not _is_initialized():
        return action()
    error: PatchwordsError | None = None
    try:
        result = action()
    except PatchwordsError as found:
        error = found
    if not any(failed for (failed,) in all_gather_integers([error is not None], by)):
        return result
    raise next(found for found in all_gather_objects(error, by) if found is not None) from error


def run_on_main_process(action: Callable[[], object], by: ProcessGroup = None) -> None:
    """Run an action in the main process; if it fails with a user's error, all raise it."""
    run_on_all_processes(lambda: action() if get_world().is_main else None, by)


def all_gather_objects(value: Any, by: ProcessGroup = None) -> list[Any]:
    """Gather a small, picklable value from every process, by rank."""
    if not _is_initialized():
        return [value]
    import torch.distributed as group

    values = [None] * group.get_world_size()
    group.all_gather_object(values, value, group=by)
    return values


def all_gather_integers(numbers: Sequence[int], by: ProcessGroup = None) -> list[list[int]]:
    """Gather the same number of integers from every process; quicker than `all_gather_objects`."""
    if not _is_initialized():
        return [list(numbers)]
    import torch

    mine = torch.tensor(numbers, dtype=torch.int64)
    rows = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(rows, mine, group=by)
    return [row.tolist() for row in rows]


def all_gather_lists(values: list[Value]) -> list[Value]:
    """Concatenate the lists of all processes, by rank; costs little while all are empty."""
    if not any(count for (count,) in all_gather_integers([len(values)])):
        return []
    return [value for some in all_gather_objects(values) for value in some]


def broadcast_from_main(value: Value) -> Value:
    """Return the main process's value."""
    first: Value = all_gather_objects(value)[0]
    return first


def all_reduce_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all processes, in place and on its device."""
    if _is_initialized():
        import torch.distributed as group

        group.all_reduce(tensor)
    return tensor


def all_reduce_means(means: dict[str, float], count: int) -> tuple[dict[str, float], int]:
    """Combine means over `count` items here into means over the items of all processes."""
    if not _is_initialized():
        return means, count
    import torch

    sums = torch.tensor([count, *(value * count for value in means.values())], dtype=torch.float64)
    total, *others = all_reduce_sum(sums).tolist()
    return {name: sum / max(total, 1) for name, sum in zip(means, others, strict=True)}, int(total)


def exit_process(code: int) -> NoReturn:
    """Exit once all is written; one of several processes skips the interpreter's shutdown.

    torch's caches of sharded operations hold a process group to the last, and with it threads that
    at times abort a process which has done everything well: torchrun would restart the run.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def get_launch_id() -> str | None:
    """Return an id of this launch of torchrun, the same after a restart; else None.

    It is the name of --rdzv-id, or else torchrun's own process, which outlives its workers.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    name = os.environ["TORCHELASTIC_RUN_ID"]
    return name if name != UNNAMED_RUN_ID else f"{socket.gethostname()}-{os.getppid()}"


def get_restart_count() -> int:
    """Return how many times torchrun has restarted the processes of the run."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def may_restart() -> bool:
    """Return whether torchrun restarts the processes if one dies (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def _is_initialized() -> bool:
    import torch.distributed as group

    return group.is_available() and group.is_initialized()
