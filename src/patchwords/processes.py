"""Worker processes on every system: how they start, and the cores that they may use.

`fork` copies the process, with its memory, in a moment; it exists on Linux, and on macOS it breaks the
system's own libraries. `spawn` starts Python again, which imports and unpickles what it needs: the
way of Windows and macOS. What workers compute does not depend on it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Literal

from patchwords.errors import ConfigError

StartMethod = Literal["fork", "spawn"]
START_METHODS: tuple[StartMethod, ...] = ("fork", "spawn")
START_METHOD_VARIABLE = "PATCHWORDS_START_METHOD"


def choose_start_method() -> StartMethod:
    """Choose how workers start: PATCHWORDS_START_METHOD, or fork where it is safe.

    Raises ConfigError for a method that this system does not have.
    """
    can_fork = hasattr(os, "fork")
    requested = os.environ.get(START_METHOD_VARIABLE)
    if not requested:
        return "fork" if can_fork and sys.platform != "darwin" else "spawn"
    for method in START_METHODS:
        if requested == method and (can_fork or method != "fork"):
            return method
    choices = "fork or spawn" if can_fork else "spawn, as this system has no fork"
    raise ConfigError(f"{START_METHOD_VARIABLE}={requested}: choose {choices}")


def count_usable_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_main_guard() -> None:
    """Raise ConfigError in a worker that is about to run the user's script again.

    A spawned worker imports the main script. Work that the script starts outside of
    `if __name__ == "__main__":` would then start in every worker, without end.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker process has imported your script and with it started the work again: put "
            'the call below `if __name__ == "__main__":`, or set workers=0'
        )
