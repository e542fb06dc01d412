"""The processes of a run that torchrun has started, and what they tell one another.

torchrun says in the environment who a process is. A process that was not started by it is the
only one of its run: then there is no process group, and every function here does nothing but give
back what it was given.

Small things (counts, wishes, errors) travel between CPUs by gloo, so that asking for them does
not wait for a GPU; tensors on GPUs travel by NCCL. Everything here that exchanges must be called
by all processes, in the same order; a thread beside the main one must do it by a group of its own.
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
Group = Any  # torch.distributed.ProcessGroup, or None: that of the main thread

# One process may write a checkpoint or open a large folder while the others wait for it.
TIMEOUT = timedelta(minutes=30)
STATIC = "none"  # torchrun's name for a run that was given none
# How gloo's errors speak of a process that is gone; NCCL's have a type of their own.
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out")


@dataclass(frozen=True)
class World:
    """Who a process is among those of its run."""

    rank: int = 0
    local_rank: int = 0  # on its machine
    size: int = 1
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """The main process writes the run folder and speaks; the others are silent."""
        return self.rank == 0


def world() -> World:
    """Who torchrun says that this process is; raises ConfigError where it says only half."""
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


def speaks() -> bool:
    """Whether this process prints: the main one does, or the only one."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(cuda: bool) -> Iterator[World]:
    """Inside, the processes of the run can talk; with `cuda` each has a GPU of its own.

    Where they can already, nothing is done.
    Raises ProcessLost where another process dies meanwhile, or does not answer in half an hour.
    """
    here = world()
    if here.size == 1 or _talking():
        yield here
        return
    import torch.distributed as group

    if cuda:
        _take_gpu(here)
    group.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=_meeting_place(here),
        rank=here.rank,
        world_size=here.size,
        timeout=TIMEOUT,
    )
    try:
        yield here
    except PatchwordsError:  # raised by all
        group.destroy_process_group()
        raise
    except RuntimeError as error:
        if isinstance(error, group.DistError) or any(s in str(error) for s in LOST):
            raise ProcessLost(
                f"process {here.rank} of {here.size} has lost another one, which died or was "
                "stopped; the last checkpoint holds"
            ) from error
        raise
    else:
        group.destroy_process_group()


@contextmanager
def own_group() -> Iterator[Group]:
    """Inside, a second group, by which a thread can talk to the like threads of all processes.

    It is gloo's, for what lies in the memory of the host. All processes enter together.
    """
    if not _talking():
        yield None
        return
    import torch.distributed as group

    made = group.new_group(backend="gloo", timeout=TIMEOUT)
    try:
        yield made
    except PatchwordsError:  # raised by all, as in `joined`
        group.barrier()  # another one may still be reading what was sent last
        group.destroy_process_group(made)
        raise
    except Exception:  # nobody uses it any more; left behind, it would abort the process at its end
        group.destroy_process_group(made)
        raise
    else:
        group.barrier()
        group.destroy_process_group(made)


def _meeting_place(here: World) -> Any:
    """The store in which processes find one another, and none that was there before a restart.

    torchrun keeps its store over restarts, with the addresses of processes that are gone. On one
    machine all processes count the restarts alike; on several the user has torchrun make a new
    store each time (docs/distributed.md).
    """
    from torch.distributed import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
    return PrefixStore(f"start-{restarts()}", store) if here.size == here.local_size else store


def _take_gpu(here: World) -> None:
    import torch

    count = torch.cuda.device_count()
    if here.local_size > count:
        raise ConfigError(
            f"{here.local_size} processes share this machine's {count} GPUs: start "
            f"--nproc-per-node {count}, or say --device cpu"
        )
    torch.cuda.set_device(here.local_rank)


def together(action: Callable[[], Value], by: Group = None) -> Value:
    """What the action gives in this process; where it fails in some, all raise the first's error.

    Only user-facing errors are told to the others. Any other ends this process, and with it the
    run: torchrun sees to that.
    """
    if not _talking():
        return action()
    error: PatchwordsError | None = None
    try:
        result = action()
    except PatchwordsError as found:
        error = found
    if not any(failed for (failed,) in gather_numbers([error is not None], by)):
        return result
    raise next(found for found in gather(error, by) if found is not None) from error


def by_main(action: Callable[[], object], by: Group = None) -> None:
    """Let the main process do it; where it fails there with a user's error, all raise that."""
    together(lambda: action() if world().is_main else None, by)


def gather(value: Any, by: Group = None) -> list[Any]:
    """The small values of all processes, by rank. They are pickled."""
    if not _talking():
        return [value]
    import torch.distributed as group

    values = [None] * group.get_world_size()
    group.all_gather_object(values, value, group=by)
    return values


def gather_numbers(numbers: Sequence[int], by: Group = None) -> list[list[int]]:
    """As many whole numbers of each process, by rank: quicker than `gather`."""
    if not _talking():
        return [list(numbers)]
    import torch

    mine = torch.tensor(numbers, dtype=torch.int64)
    rows = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(rows, mine, group=by)
    return [row.tolist() for row in rows]


def concatenate(values: list[Value]) -> list[Value]:
    """The lists of all processes as one, by rank; costs next to nothing while all are empty."""
    if not any(count for (count,) in gather_numbers([len(values)])):
        return []
    return [value for some in gather(values) for value in some]


def from_main(value: Value) -> Value:
    """The value of the main process."""
    first: Value = gather(value)[0]
    return first


def sum_over(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, on the tensor's device; in place."""
    if _talking():
        import torch.distributed as group

        group.all_reduce(tensor)
    return tensor


def mean_over(means: dict[str, float], count: int) -> tuple[dict[str, float], int]:
    """Means over `count` things here -> means over the things of all processes, and how many."""
    if not _talking():
        return means, count
    import torch

    sums = torch.tensor([count, *(value * count for value in means.values())], dtype=torch.float64)
    total, *others = sum_over(sums).tolist()
    return {name: sum / max(total, 1) for name, sum in zip(means, others, strict=True)}, int(total)


def leave(code: int) -> NoReturn:
    """End the process, when all is written; one of several at once, without its interpreter's end.

    torch's caches of sharded operations hold a process group to the last, and with it threads that
    at times abort a process which has done everything well: torchrun would start the run anew.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def launch() -> str | None:
    """What tells this start of torchrun from others, the same after a restart; else None.

    It is the name of --rdzv-id, or else torchrun's own process, which outlives its workers.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    name = os.environ["TORCHELASTIC_RUN_ID"]
    return name if name != STATIC else f"{socket.gethostname()}-{os.getppid()}"


def restarts() -> int:
    """How often torchrun has started the run's processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def may_restart() -> bool:
    """Whether torchrun would start the processes anew if one died (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def _talking() -> bool:
    import torch.distributed as group

    return group.is_available() and group.is_initialized()
