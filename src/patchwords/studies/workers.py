"""Worker processes of a study, each with its share of the CPU cores.

They have process groups of their own, so Ctrl-C reaches only the main process: it tells them to
stop, once, and each leaves a checkpoint. They also stop if the main process dies.
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

CHECKPOINT_PATIENCE = 60.0  # seconds to write a checkpoint
POLL_SECONDS = 0.2  # seconds between checks that all are alive

MessageCallback = Callable[[Any], None]
WorkerTask = Callable[[MessageCallback], None]  # run by each process; pickled


@dataclass(frozen=True)
class WorkerFailure:
    """An error of a worker, sent in place of a message."""

    error: BaseException


def run_workers(work: WorkerTask, jobs: int, threads: int, report: MessageCallback) -> None:
    """Run `work` in `jobs` processes of `threads` threads; `report` gets their messages.

    One job runs in this process. Raises a worker's PatchwordsError, Interrupted after a signal,
    ProcessLost if a worker was killed.
    """
    if jobs == 1:
        with limit_torch_threads(threads):
            return work(report)
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    workers = [
        context.Process(target=_worker_main, args=(work, threads, answers)) for _ in range(jobs)
    ]
    with catch_stop_signals() as stop:
        try:
            for process in workers:
                process.start()
            while any(process.is_alive() for process in workers):
                _forward_message(answers, report)
                _raise_if_lost(workers)
                if (code := stop()) is not None:
                    raise Interrupted("stopped", code)
            while _forward_message(answers, report):
                pass
            _raise_if_lost(workers)
        finally:
            _terminate_workers(workers)
            answers.close()


@contextmanager
def limit_torch_threads(threads: int) -> Iterator[None]:
    """Limit torch to `threads` threads inside the context."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _forward_message(answers: Any, report: MessageCallback) -> bool:
    """Pass one message on, if there is one."""
    try:
        answer = answers.get(timeout=POLL_SECONDS)
    except queue.Empty:
        return False
    if isinstance(answer, WorkerFailure):
        raise answer.error
    report(answer)
    return True


def _raise_if_lost(workers: list[SpawnProcess]) -> None:
    for process in workers:
        if process.exitcode not in {None, 0}:
            if process.exitcode == 1:
                raise RuntimeError("a process of the study failed: its traceback is above")
            raise ProcessLost(
                f"a process of the study was killed (exit code {process.exitcode}), perhaps for "
                "want of memory; the same command goes on, with fewer --jobs if need be"
            )


def _terminate_workers(workers: list[SpawnProcess]) -> None:
    """Tell running workers to stop, and wait for their checkpoints."""
    for process in workers:
        if process.is_alive():
            process.terminate()
    for process in workers:
        if process.pid is not None:
            process.join(CHECKPOINT_PATIENCE)
            if process.is_alive():
                process.kill()


def _worker_main(work: WorkerTask, threads: int, answers: Any) -> None:
    """Run the task in a worker process."""
    if hasattr(os, "setsid"):  # on Windows Ctrl-C reaches workers, too, and they stop by themselves
        os.setsid()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        with limit_torch_threads(threads):
            work(answers.put)
    except Interrupted:
        return  # by the main process
    except PatchwordsError as error:
        answers.put(WorkerFailure(error))


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
