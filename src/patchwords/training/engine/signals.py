"""Ctrl-C and SIGTERM as a flag that the training loop reads between steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class StopSignal:
    """The received stop signal; calling it gives the exit code (130 or 143) or None."""

    def __init__(self, announce: Callable[[str], None] | None = None) -> None:
        self.code: int | None = None
        self.announce = announce

    def __call__(self) -> int | None:
        return self.code

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.code is not None:  # the second signal: stop now
            raise KeyboardInterrupt
        self.code = 128 + number
        if self.announce is not None:
            with suppress(RuntimeError):  # the signal came in the middle of another line
                self.announce(
                    "stopping: this step ends first, and a checkpoint is written; once more "
                    "(Ctrl-C) stops at once, back to the last checkpoint"
                )


@contextmanager
def catch_stop_signals(announce: Callable[[str], None] | None = None) -> Iterator[StopSignal]:
    """Inside, the first signal sets a flag and a second one interrupts at once.

    `announce` says so when the first one comes, as a step may take a while.
    """
    stop = StopSignal(announce)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, stop.receive)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
