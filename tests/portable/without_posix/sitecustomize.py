"""Linux without what only POSIX has: with this folder on PYTHONPATH, each process is without it.

What remains is what Windows offers: locks by msvcrt, workers by spawn, no /dev/shm. Packages that ask
`sys.platform` first keep the functions, so those are missing for patchwords and the tests only.
"""

# ruff: noqa: I001
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

# What the standard library itself takes from POSIX to start a process here is loaded before.
import fcntl
import multiprocessing.heap
import multiprocessing.popen_spawn_posix
import subprocess
import tempfile

LOADED_BEFORE = (multiprocessing.popen_spawn_posix, subprocess, tempfile)
REFUSED_MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
REFUSED_NAMES = {
    os: ("fork", "sched_getaffinity", "setsid", "getloadavg", "register_at_fork", "sysconf"),
    signal: ("SIGKILL", "sigwaitinfo", "pthread_sigmask"),
}
REFUSED_CALLERS = ("patchwords", "stop_and_resume", "__main__")


def refuse_names(module: types.ModuleType, names: tuple[str, ...]) -> Callable[[str], Any]:
    """Take names out of a module; -> a `__getattr__` that gives them to other packages."""
    hidden = {name: vars(module).pop(name) for name in names}

    def get(name: str) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if name not in hidden or caller.partition(".")[0] in REFUSED_CALLERS:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return hidden[name]

    return get


def lock_byte(descriptor: int, mode: int, length: int) -> None:
    """`msvcrt.locking` by flock, which also ends with its descriptor."""
    assert (mode, length) == (LK_NBLCK, 1)
    flock(descriptor, EXCLUSIVE_NOW)


LK_NBLCK = 2  # as in Windows' sys/locking.h
flock, EXCLUSIVE_NOW = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
multiprocessing.heap.Arena._dir_candidates = []  # type: ignore[attr-defined]  # no /dev/shm
for refused in REFUSED_MODULES:
    sys.modules[refused] = None  # type: ignore[assignment]  # `import` raises ModuleNotFoundError
for changed, names in REFUSED_NAMES.items():
    changed.__getattr__ = refuse_names(changed, names)  # type: ignore[method-assign]
windows = types.ModuleType("msvcrt")
windows.locking, windows.LK_NBLCK = lock_byte, LK_NBLCK  # type: ignore[attr-defined]
sys.modules["msvcrt"] = windows
