"""Ctrl-C and SIGTERM as a wish that the loop reads between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """Call it for the exit code of the signal that came (130 or 143), or None."""

    def __init__(self) -> None:
        self.code: int | None = None

    def __call__(self) -> int | None:
        return self.code

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.code is not None:  # asked twice: now
            raise KeyboardInterrupt
        self.code = 128 + number


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Inside, the first signal only sets the wish; a second one interrupts at once."""
    wish = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield wish  # only the main thread may take signals
        return
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in old:
        signal.signal(number, wish.receive)
    try:
        yield wish
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
