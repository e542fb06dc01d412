"""Several processes at one study: each takes cells that nobody has, on its share of the cores.

They are in process groups of their own, so that Ctrl-C reaches only the one that speaks: it tells
them to stop, once, and each leaves a checkpoint. Where that one dies they stop, too.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Any

from patchwords.errors import Interrupted, PatchwordsError, ProcessLost
from patchwords.train.signals import stop_signals

PATIENCE = 60.0  # seconds that a process has for its checkpoint
LOOK = 0.2  # seconds between two looks at whether all are alive

Tell = Callable[[Any], None]
Work = Callable[[Tell], None]  # what each of them does; it travels by pickle


@dataclass(frozen=True)
class Fault:
    """What a process could not do, in place of an answer."""

    error: BaseException


def work_together(work: Work, jobs: int, threads: int, tell: Tell) -> None:
    """Do `work` in so many processes, of so many threads each; `tell` gets what they tell.

    One job is done in this process. Raises what any of them raises that is the user's, Interrupted
    after a signal, ProcessLost where one was killed.
    """
    if jobs == 1:
        with threaded(threads):
            return work(tell)
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    crew = [context.Process(target=_job, args=(work, threads, answers)) for _ in range(jobs)]
    with stop_signals() as stop:
        try:
            for process in crew:
                process.start()
            while any(process.is_alive() for process in crew):
                _hear(answers, tell)
                _refuse_lost(crew)
                if (code := stop()) is not None:
                    raise Interrupted("stopped", code)
            while _hear(answers, tell):
                pass
            _refuse_lost(crew)
        finally:
            _dismiss(crew)
            answers.close()


@contextmanager
def threaded(threads: int) -> Iterator[None]:
    """Inside, torch computes with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _hear(answers: Any, tell: Tell) -> bool:
    """Pass one answer on, if one comes."""
    try:
        answer = answers.get(timeout=LOOK)
    except queue.Empty:
        return False
    if isinstance(answer, Fault):
        raise answer.error
    tell(answer)
    return True


def _refuse_lost(crew: list[SpawnProcess]) -> None:
    for process in crew:
        if process.exitcode not in {None, 0}:
            if process.exitcode == 1:
                raise RuntimeError("a process of the study failed: its traceback is above")
            raise ProcessLost(
                f"a process of the study was killed (exit code {process.exitcode}), perhaps for "
                "want of memory; the same command goes on, with fewer --jobs if need be"
            )


def _dismiss(crew: list[SpawnProcess]) -> None:
    """Tell those at work to stop, and wait for their checkpoints."""
    for process in crew:
        if process.is_alive():
            process.terminate()
    for process in crew:
        if process.pid is not None:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()


def _job(work: Work, threads: int, answers: Any) -> None:
    """In a process of its own."""
    os.setsid()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        with threaded(threads):
            work(answers.put)
    except Interrupted:
        return  # it was told to
    except PatchwordsError as error:
        answers.put(Fault(error))


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
