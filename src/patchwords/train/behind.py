"""Writing behind the training: one write at a time, in a thread, while steps are taken.

The processes of a run begin their writes at the same step, and their threads exchange by a group of
their own: two threads that used one group would take each other's messages.

A write that fails is never lost: what it raised is raised by the next `finish`, in the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from patchwords.distributed import ProcessGroup, thread_process_group
from patchwords.errors import CheckpointError, PatchwordsError


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
