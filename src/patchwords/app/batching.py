"""Questions that come one by one are answered together: a bounded queue before one worker thread.

A question waits a few milliseconds for others of its kind; while the worker is busy more of them
gather by themselves, so batches grow with the load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from patchwords.app.refused import RequestRefused, busy_error

BatchFunction = Callable[
    [Any, list[Any]], Sequence[Any]
]  # (kind, items) -> an answer for each item


@dataclass(frozen=True, eq=False)
class QueuedItem:
    """One item, and where its answer goes."""

    kind: Hashable
    item: Any
    future: Future[Any] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Answers questions of one kind at a time, the kind of the oldest first.

    Args:
        answer: computes a batch, always in the same thread.
        most: questions in a batch.
        wait: seconds that a question waits for others.
        bound: questions that may wait; one more is refused.
        observe: told the size of every batch.
    """

    def __init__(
        self,
        answer: BatchFunction,
        most: int,
        wait: float,
        bound: int,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.answer, self.observe = answer, observe
        self.most, self.wait, self.bound = most, wait, bound
        self.waiting: list[QueuedItem] = []
        self.changed = threading.Condition()
        self.closed = False
        self.worker = threading.Thread(target=self.work, name="model", daemon=True)
        self.worker.start()

    def __len__(self) -> int:
        return len(self.waiting)

    def ask(self, kind: Hashable, item: Any) -> Future[Any]:
        """-> the answer, when it is there; cancelled before its turn, it is never computed.

        Raises Refused where the queue is full (429) or the app stops (503).
        """
        question = QueuedItem(kind, item)
        with self.changed:
            if self.closed:
                raise RequestRefused(503, "the app is stopping")
            if len(self.waiting) >= self.bound:
                raise busy_error(f"{self.bound} questions wait for the model")
            self.waiting.append(question)
            self.changed.notify()
        return question.future

    def close(self) -> None:
        """End the worker after the batch in hand; what waits is refused."""
        with self.changed:
            self.closed = True
            left, self.waiting = self.waiting, []
            self.changed.notify()
        for question in left:
            if question.future.set_running_or_notify_cancel():
                question.future.set_exception(RequestRefused(503, "the app is stopping"))
        self.worker.join(timeout=5)

    def work(self) -> None:
        while (batch := self.next_batch()) is not None:
            batch = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if not batch:
                continue
            self.observe(len(batch))
            try:
                answers = self.answer(batch[0].kind, [one.item for one in batch])
                for one, answer in zip(batch, answers, strict=True):
                    one.future.set_result(answer)
            except Exception as fault:  # whoever asked is told; the worker goes on
                for one in batch:
                    if not one.future.done():
                        one.future.set_exception(fault)

    def next_batch(self) -> list[QueuedItem] | None:
        """The oldest question with others of its kind; None when the app stops."""
        with self.changed:
            while not self.waiting and not self.closed:
                self.changed.wait()
            if self.closed:
                return None
            oldest = self.waiting[0]
            until = oldest.since + self.wait
            while (
                not self.closed
                and len(self.like(oldest)) < self.most
                and (left := until - time.monotonic()) > 0
            ):
                self.changed.wait(left)
            batch = self.like(oldest)[: self.most]
            chosen = {id(one) for one in batch}
            self.waiting = [one for one in self.waiting if id(one) not in chosen]
            return batch

    def like(self, question: QueuedItem) -> list[QueuedItem]:
        return [one for one in self.waiting if one.kind == question.kind]
