"""Checkpoints in shares are written behind the training, and nothing of that is lost."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from scene_behind import FAILING

from patchwords.distributed import ProcessGroup
from patchwords.errors import CheckpointError, DataError
from patchwords.training.engine.sharded_checkpoint import AsyncWriter, open_async_writer

SCENES = ("trains_on", "fails", "fails_at_the_end")
ENDINGS = ("interrupted", "broken_off", "broken_off_and_failed")
Found = Mapping[str, list[dict[str, Any]]]
THIRD, FIFTH, SIXTH = (f"step-{step:08d}" for step in (3, 5, 6))
FULL = "the disk is full: the checkpoint of step"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return ranks.play(tmp_path_factory.mktemp("behind"), 2, (*SCENES, *ENDINGS))


def test_training_goes_on_and_the_state_of_the_step_is_saved(two: Found) -> None:
    for found in two["trains_on"]:
        assert found["reached"][0] == 5  # while that of step 3 was not begun
        assert found["kept"] == {THIRD: True, SIXTH: True}
        assert found["error"] is None


@pytest.mark.parametrize("place", FAILING)
def test_a_failed_write_is_raised_in_all_at_the_next_save(two: Found, place: str) -> None:
    first, second = (found[place] for found in two["fails"])
    assert first == second
    assert first["error"].startswith(f"CheckpointError: {FULL} 3 was not written to ")
    assert "there is none before it; free some space" in first["error"]
    assert first["step"] == 6
    assert first["kept"] == {}


def test_the_last_write_is_waited_for_and_its_failure_raised(two: Found) -> None:
    first, second = two["fails_at_the_end"]
    assert first == second
    assert first["error"].startswith(f"CheckpointError: {FULL} 6 was not written to ")
    assert f"the last good one is {THIRD}" in first["error"]
    assert first["kept"] == {THIRD: True}


def test_a_stopped_run_has_finished_its_write(two: Found) -> None:
    for found in two["interrupted"]:
        assert found["error"].startswith("Interrupted: stopped after step 5 of 6; go on with:")
        assert found["kept"] == {THIRD: True, FIFTH: True}


def test_a_run_that_an_error_ends_has_finished_its_write(two: Found) -> None:
    for found in two["broken_off"]:
        assert found["error"] == "DataError: the images are gone"
        assert (found["step"], found["kept"]) == (4, {THIRD: True})


def test_of_two_errors_none_is_lost(two: Found) -> None:
    for found in two["broken_off_and_failed"]:
        assert found["error"].startswith(f"CheckpointError: {FULL} 3 was not written")
        assert found["error"].endswith("; training had ended: the images are gone")
        assert "\n" not in found["error"]


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """And the other one does not hang."""
    processes = ranks.start(2, [ranks.__file__, tmp_path, "dies_writing"])
    try:
        errors = [process.communicate(timeout=ranks.PATIENCE)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [1, -9]
    assert "ProcessLost: process 0 of 2 has lost another one" in errors[0]
    run = tmp_path / "dies_writing"
    assert {path.name for path in (run / "checkpoints").glob("step-*")} == {THIRD}


def wait_on(event: threading.Event, seen: list[str], name: str) -> Any:
    def write(group: ProcessGroup) -> None:
        assert event.wait(10)
        seen.append(name)

    return write


def fail(group: ProcessGroup) -> None:
    raise CheckpointError("no room")


def test_one_write_at_a_time() -> None:
    seen: list[str] = []
    event = threading.Event()
    with open_async_writer() as writer:
        writer.begin(wait_on(event, seen, "first"))
        with pytest.raises(AssertionError, match="the write before this one"):
            writer.begin(wait_on(event, seen, "second"))
        seen.append("training")
        event.set()
        writer.finish()
        writer.begin(wait_on(event, seen, "second"))
    assert seen == ["training", "first", "second"]


def test_a_failure_is_raised_once() -> None:
    with open_async_writer() as writer:
        writer.begin(fail)
        with pytest.raises(CheckpointError, match="no room"):
            writer.finish()
        writer.finish()
        writer.begin(lambda group: None)
    with pytest.raises(CheckpointError, match=r"^no room$"), open_async_writer() as writer:
        writer.begin(fail)


@pytest.mark.parametrize(
    ("ended", "failed", "raised"),
    [
        (DataError("gone"), CheckpointError("no room"), "no room; training had ended: gone"),
        (DataError("gone"), TypeError("ours"), "ours"),
        (TypeError("ours"), CheckpointError("no room"), "ours"),
        (RuntimeError("Connection closed by peer"), RuntimeError("it, too"), "Connection closed"),
    ],
)
def test_where_both_fail(ended: Exception, failed: Exception, raised: str) -> None:
    def train_and_write() -> None:
        with open_async_writer() as writer:
            writer.begin(write)
            raise ended

    def write(group: ProcessGroup) -> None:
        raise failed

    with pytest.raises(Exception, match=raised) as caught:
        train_and_write()
    said = [caught.value, caught.value.__cause__]  # what a traceback tells of
    assert ended in said
    assert failed in said or str(failed) in str(caught.value)


def test_asked_twice_is_not_made_to_wait() -> None:
    event, seen, writers = threading.Event(), list[str](), list[AsyncWriter]()

    def stop_at_once() -> None:
        with open_async_writer() as writer:
            writers.append(writer)
            writer.begin(wait_on(event, seen, "written"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_at_once()
    assert seen == []
    [writer] = writers
    assert writer.thread is not None
    assert writer.thread.daemon  # nor is the process made to
    event.set()
    writer.finish()


def test_a_copy_that_is_written_takes_no_memory() -> None:
    with open_async_writer() as writer:
        copied = torch.zeros(7)
        gone = weakref.ref(copied)
        writer.begin(lambda group, copied=copied: None)
        assert writer.thread is not None
        writer.thread.join()
        del copied
        gc.collect()
        assert gone() is None
