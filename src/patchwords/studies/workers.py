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
from patchwords.training.engine.signals import catch_stop_signals

CHECKPOINT_PATIENCE = 60.0  # seconds that a process has for its checkpoint
POLL_SECONDS = 0.2  # seconds between two looks at whether all are alive

MessageCallback = Callable[[Any], None]
WorkerTask = Callable[[MessageCallback], None]  # what each of them does; it travels by pickle


@dataclass(frozen=True)
class WorkerFailure:
    """What a process could not do, in place of an answer."""

    error: BaseException


def run_workers(work: WorkerTask, jobs: int, threads: int, tell: MessageCallback) -> None:
    """Do `work` in so many processes, of so many threads each; `tell` gets what they tell.

    One job is done in this process. Raises what any of them raises that is the user's, Interrupted
    after a signal, ProcessLost where one was killed.
    """
    if jobs == 1:
        with limit_torch_threads(threads):
            return work(tell)
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    crew = [
        context.Process(target=_worker_main, args=(work, threads, answers)) for _ in range(jobs)
    ]
    with catch_stop_signals() as stop:
        try:
            for process in crew:
                process.start()
            while any(process.is_alive() for process in crew):
                _forward_message(answers, tell)
                _raise_if_lost(crew)
                if (code := stop()) is not None:
                    raise Interrupted("stopped", code)
            while _forward_message(answers, tell):
                pass
            _raise_if_lost(crew)
        finally:
            _terminate_workers(crew)
            answers.close()


@contextmanager
def limit_torch_threads(threads: int) -> Iterator[None]:
    """Inside, torch computes with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _forward_message(answers: Any, tell: MessageCallback) -> bool:
    """Pass one answer on, if one comes."""
    try:
        answer = answers.get(timeout=POLL_SECONDS)
    except queue.Empty:
        return False
    if isinstance(answer, WorkerFailure):
        raise answer.error
    tell(answer)
    return True


def _raise_if_lost(crew: list[SpawnProcess]) -> None:
    for process in crew:
        if process.exitcode not in {None, 0}:
            if process.exitcode == 1:
                raise RuntimeError("a process of the study failed: its traceback is above")
            raise ProcessLost(
                f"a process of the study was killed (exit code {process.exitcode}), perhaps for "
                "want of memory; the same command goes on, with fewer --jobs if need be"
            )


def _terminate_workers(crew: list[SpawnProcess]) -> None:
    """Tell those at work to stop, and wait for their checkpoints."""
    for process in crew:
        if process.is_alive():
            process.terminate()
    for process in crew:
        if process.pid is not None:
            process.join(CHECKPOINT_PATIENCE)
            if process.is_alive():
                process.kill()


def _worker_main(work: WorkerTask, threads: int, answers: Any) -> None:
    """In a process of its own."""
    os.setsid()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        with limit_torch_threads(threads):
            work(answers.put)
    except Interrupted:
        return  # it was told to
    except PatchwordsError as error:
        answers.put(WorkerFailure(error))


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
