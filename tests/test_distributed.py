"""What torchrun's environment says, and what one process alone makes of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from patchwords import distributed
from patchwords.cli import main
from patchwords.data.sampler import check_batch_divisible
from patchwords.distributed import World, get_world
from patchwords.errors import ConfigError, DataError

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def under_torchrun(monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    for name, value in {**TORCHRUN, **more}.items():
        monkeypatch.setenv(name, value)


def test_who_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_world() == World() == World(rank=0, local_rank=0, size=1, local_size=1)
    assert get_world().is_main
    assert distributed.is_main_process()
    under_torchrun(monkeypatch)
    assert get_world() == World(rank=5, local_rank=1, size=8, local_size=4)
    assert not get_world().is_main
    assert not distributed.is_main_process()


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "zero")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is set, but one of RANK, .* or no number"):
        get_world()


def test_only_the_main_process_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, lines in (("0", 1), ("5", 0)):
        under_torchrun(monkeypatch, RANK=rank)
        assert main(["fintune"]) == 2
        assert capsys.readouterr().err.count("\n") == lines


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    under_torchrun(monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        pytest.raises(ConfigError, match=r"4 processes share .* 2 GPUs: start --nproc-per-node 2"),
        distributed.join_process_group(cuda=True),
    ):
        pass


def test_a_process_alone_is_given_back_what_it_gave() -> None:
    with distributed.join_process_group(cuda=False) as here:
        assert here == World()
        assert distributed.all_gather_objects({"a": 1}) == [{"a": 1}]
        assert distributed.all_gather_integers([3, 5]) == [[3, 5]]
        assert distributed.all_gather_lists([7, 8]) == [7, 8]
        assert distributed.broadcast_from_main("x") == "x"
        assert distributed.all_reduce_means({"loss": 0.1}, 3) == ({"loss": 0.1}, 3)
        assert distributed.run_on_all_processes(lambda: 4) == 4
        assert torch.equal(distributed.all_reduce_sum(torch.ones(2)), torch.ones(2))
        with pytest.raises(DataError, match="gone"):
            distributed.run_on_main_process(fail)
    assert not torch.distributed.is_initialized()


def fail() -> None:
    raise DataError("gone")


def test_a_start_is_known_by_its_name_or_by_torchrun_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert distributed.get_launch_id() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-17")
    assert distributed.get_launch_id() == "job-17"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr("os.getppid", lambda: 4711)
    assert (distributed.get_launch_id() or "").endswith("-4711")


@pytest.mark.parametrize(
    ("batch", "processes", "hint"),
    [
        (33, 2, "take 32 or 34, or start 1 process"),
        (100, 8, "take 96 or 104, or start 5 processes"),
        (3, 4, "take 4, or start 3 processes"),
    ],
)
def test_a_batch_must_divide(batch: int, processes: int, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_batch_divisible(batch, processes)
    assert str(caught.value) == (
        f"--batch-size {batch} is not a multiple of the {processes} processes: {hint}"
    )
    check_batch_divisible(processes * batch, processes)


LEAVES = """
import atexit, threading, time
from patchwords.distributed import exit_process
atexit.register(print, "tidied")
threading.Thread(target=time.sleep, args=(600,)).start()  # the interpreter's end waits for it
print("written")
exit_process(3)
"""


def test_one_of_several_ends_at_once_and_loses_nothing() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LEAVES],
        env={**os.environ, **TORCHRUN},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (found.returncode, found.stderr) == (3, "")
    assert found.stdout.split() == ["written", "tidied"]


def test_a_process_alone_ends_as_any_other() -> None:
    with pytest.raises(SystemExit) as caught:
        distributed.exit_process(2)
    assert caught.value.code == 2
