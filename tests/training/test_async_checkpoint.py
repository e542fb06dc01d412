"""Sharded checkpoints are written in the background, and no failure is lost."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed.checkpoint as dcp
from scene_async_checkpoint import FAILING

from patchwords.errors import CheckpointError, DataError
from patchwords.training.engine.sharded_checkpoint import (
    AsyncWriter,
    ShardWriter,
    open_async_writer,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SCENES = ("trains_on", "fails", "fails_at_the_end")
ENDINGS = ("interrupted", "stopped_by_an_error", "stopped_by_an_error_and_failed")
Outcomes = Mapping[str, list[dict[str, Any]]]
THIRD, FIFTH, SIXTH = (f"step-{step:08d}" for step in (3, 5, 6))
FULL = "the disk is full: the checkpoint of step"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return ranks.play(tmp_path_factory.mktemp("async"), 2, (*SCENES, *ENDINGS))


def test_training_goes_on_while_the_state_of_a_step_is_written(two: Outcomes) -> None:
    for outcome in two["trains_on"]:
        assert outcome["reached"][0] == 5  # before the write of step 3 began
        assert outcome["kept"] == {THIRD: True, SIXTH: True}
        assert outcome["error"] is None


@pytest.mark.parametrize("place", FAILING)
def test_a_failed_write_is_raised_in_every_process_at_the_next_save(
    two: Outcomes, place: str
) -> None:
    first, second = (outcome[place] for outcome in two["fails"])
    assert first == second
    assert first["error"].startswith(f"CheckpointError: {FULL} 3 was not written to ")
    assert "there is none before it; free some space" in first["error"]
    assert first["step"] == 6
    assert first["kept"] == {}


def test_a_failure_of_the_last_write_is_raised(two: Outcomes) -> None:
    first, second = two["fails_at_the_end"]
    assert first == second
    assert first["error"].startswith(f"CheckpointError: {FULL} 6 was not written to ")
    assert f"the last good one is {THIRD}" in first["error"]
    assert first["kept"] == {THIRD: True}


def test_a_stopped_run_has_finished_its_write(two: Outcomes) -> None:
    for outcome in two["interrupted"]:
        assert outcome["error"].startswith("Interrupted: stopped after step 5 of 6; go on with:")
        assert outcome["kept"] == {THIRD: True, FIFTH: True}


def test_a_run_that_an_error_ends_has_finished_its_write(two: Outcomes) -> None:
    for outcome in two["stopped_by_an_error"]:
        assert outcome["error"] == "DataError: the images are gone"
        assert (outcome["step"], outcome["kept"]) == (4, {THIRD: True})


def test_an_error_and_a_failed_write_are_both_told(two: Outcomes) -> None:
    for outcome in two["stopped_by_an_error_and_failed"]:
        assert outcome["error"].startswith(f"CheckpointError: {FULL} 3 was not written")
        assert outcome["error"].endswith("; training had ended: the images are gone")
        assert "\n" not in outcome["error"]


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """And the other process does not hang."""
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


def test_a_second_ctrl_c_does_not_wait_for_the_write(tmp_path: Path) -> None:
    processes = ranks.start(2, [ranks.__file__, tmp_path, "stopped_twice"])
    try:
        for process in processes:
            process.communicate(timeout=ranks.PATIENCE)  # the write would take an hour
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [130, 130]
    checkpoints = tmp_path / "stopped_twice" / "checkpoints"
    assert list(checkpoints.glob("step-*")) == []


Ended = Future[Any]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    """The end of every write, for a test to decide."""
    future = Ended()
    monkeypatch.setattr(dcp, "async_save", lambda *args, **settings: future)
    return future


def begin(writer: AsyncWriter, folder: Path) -> None:
    writer.begin({}, ShardWriter(folder, 3, {}))


def test_one_write_at_a_time(ended: Ended, tmp_path: Path) -> None:
    with open_async_writer() as writer:
        begin(writer, tmp_path)
        with pytest.raises(AssertionError, match="the write before this one"):
            begin(writer, tmp_path)
        ended.set_result(None)
        writer.finish()
        begin(writer, tmp_path)


def test_a_failure_is_raised_once(ended: Ended, tmp_path: Path) -> None:
    ended.set_exception(CheckpointError("no room"))
    with open_async_writer() as writer:
        begin(writer, tmp_path)
        with pytest.raises(CheckpointError, match="no room"):
            writer.finish()
        writer.finish()
    with pytest.raises(CheckpointError, match=r"^no room$"), open_async_writer() as writer:
        begin(writer, tmp_path)


@pytest.mark.parametrize(
    ("stopped", "failed", "raised"),
    [
        (DataError("gone"), CheckpointError("no room"), "no room; training had ended: gone"),
        (DataError("gone"), TypeError("ours"), "ours"),
        (TypeError("ours"), CheckpointError("no room"), "ours"),
        (RuntimeError("Connection closed by peer"), RuntimeError("it, too"), "Connection closed"),
    ],
)
def test_both_errors_are_told(
    stopped: Exception, failed: Exception, raised: str, ended: Ended, tmp_path: Path
) -> None:
    def train_and_write() -> None:
        with open_async_writer() as writer:
            begin(writer, tmp_path)
            raise stopped

    ended.set_exception(failed)
    with pytest.raises(Exception, match=raised) as caught:
        train_and_write()
    told = [caught.value, caught.value.__cause__]  # in the traceback
    assert stopped in told
    assert failed in told or str(failed) in str(caught.value)


def test_a_written_copy_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    stage = ShardWriter.stage

    def watched(self: ShardWriter, tensors: Any) -> Any:
        copied = stage(self, tensors)
        copies.extend(weakref.ref(tensor) for tensor in copied.values())
        return copied

    monkeypatch.setattr(ShardWriter, "stage", watched)
    with open_async_writer() as writer:
        writer.begin({"weight": torch.zeros(7)}, ShardWriter(tmp_path, 3, {}))
        assert writer.write is not None
        writer.write[1].result()
        deadline = time.monotonic() + 60
        while copies[0]() is not None and time.monotonic() < deadline:
            gc.collect()  # the thread may still be leaving the write
            time.sleep(0.01)
        assert copies[0]() is None
