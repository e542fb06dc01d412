"""The queue before the model: what goes together, what is refused, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from patchwords.app.middleware import RequestRefused
from patchwords.app.service import Batcher


class Slow:
    """Answers "kind:item", once it is let."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[Any]]] = []
        self.threads: set[int] = set()
        self.busy = threading.Event()
        self.free = threading.Event()

    def __call__(self, kind: Any, items: list[Any]) -> list[str]:
        self.batches.append((kind, items))
        self.threads.add(threading.get_ident())
        self.busy.set()
        assert self.free.wait(10)
        if "bad" in items:
            raise ValueError("a bad item")
        return [f"{kind}:{item}" for item in items]


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def batcher(slow: Slow) -> Iterator[Batcher]:
    made = Batcher(slow, most=4, wait=0.0, bound=7)
    yield made
    slow.free.set()
    made.close()


def occupy(batcher: Batcher, slow: Slow) -> None:
    """The worker has a question in hand, and no other."""
    batcher.ask("a", 0)
    assert slow.busy.wait(10)


def test_what_came_while_the_worker_was_busy_goes_together(batcher: Batcher, slow: Slow) -> None:
    occupy(batcher, slow)
    futures = [batcher.ask("a", item) for item in range(1, 7)]
    slow.free.set()
    assert [future.result(10) for future in futures] == [f"a:{item}" for item in range(1, 7)]
    assert slow.batches == [("a", [0]), ("a", [1, 2, 3, 4]), ("a", [5, 6])]
    assert len(slow.threads) == 1


def test_kinds_are_kept_apart_and_the_oldest_comes_first(batcher: Batcher, slow: Slow) -> None:
    occupy(batcher, slow)
    futures = [batcher.ask(kind, item) for item, kind in enumerate("babba")]
    slow.free.set()
    assert [future.result(10) for future in futures] == ["b:0", "a:1", "b:2", "b:3", "a:4"]
    assert slow.batches[1:] == [("b", [0, 2, 3]), ("a", [1, 4])]


def test_a_full_batch_does_not_wait_for_others(slow: Slow) -> None:
    slow.free.set()
    batcher = Batcher(slow, most=3, wait=600.0, bound=9)
    futures = [batcher.ask("a", item) for item in range(3)]
    assert [future.result(10) for future in futures] == ["a:0", "a:1", "a:2"]
    assert slow.batches == [("a", [0, 1, 2])]
    batcher.close()


def test_a_lonely_question_does_not_wait_for_ever(slow: Slow) -> None:
    slow.free.set()
    batcher = Batcher(slow, most=3, wait=0.05, bound=9)
    assert batcher.ask("a", 3).result(10) == "a:3"
    batcher.close()


def test_a_full_queue_is_refused_and_works_on(batcher: Batcher, slow: Slow) -> None:
    occupy(batcher, slow)
    futures = [batcher.ask("a", item) for item in range(7)]
    assert len(batcher) == 7
    with pytest.raises(RequestRefused) as refused:
        batcher.ask("a", 7)
    assert refused.value.status == 429
    assert refused.value.headers == {"Retry-After": "1"}
    slow.free.set()
    assert futures[-1].result(10) == "a:6"
    assert batcher.ask("a", 8).result(10) == "a:8"


def test_what_nobody_waits_for_is_not_computed(batcher: Batcher, slow: Slow) -> None:
    occupy(batcher, slow)
    gone, kept = batcher.ask("a", 1), batcher.ask("a", 2)
    assert gone.cancel()
    slow.free.set()
    assert kept.result(10) == "a:2"
    assert slow.batches[1:] == [("a", [2])]


def test_a_fault_is_told_to_its_batch_and_to_no_other(batcher: Batcher, slow: Slow) -> None:
    slow.free.set()
    with pytest.raises(ValueError, match="a bad item"):
        batcher.ask("a", "bad").result(10)
    assert batcher.ask("a", 1).result(10) == "a:1"


def test_sizes_of_batches_are_told(slow: Slow) -> None:
    slow.free.set()
    sizes: list[int] = []
    batcher = Batcher(slow, most=4, wait=0.0, bound=7, observe=sizes.append)
    batcher.ask("a", 1).result(10)
    assert sizes == [1]
    batcher.close()


def test_the_end_refuses_what_waits(batcher: Batcher, slow: Slow) -> None:
    occupy(batcher, slow)
    waiting = batcher.ask("a", 1)
    threading.Timer(0.1, slow.free.set).start()
    batcher.close()
    assert not batcher.worker.is_alive()
    with pytest.raises(RequestRefused, match="stopping"):
        waiting.result(1)
    with pytest.raises(RequestRefused, match="stopping"):
        batcher.ask("a", 2)
    assert slow.batches == [("a", [0])]
