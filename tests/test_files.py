"""Locks that end with their process, and durations."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from patchwords.errors import ConfigError
from patchwords.files import file_lock, format_duration


def test_one_thread_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    held, most = 0, 0

    def work() -> None:
        nonlocal held, most
        for _ in range(20):
            with file_lock(tmp_path / "lock") as locked:
                assert locked
                held += 1
                most = max(most, held)
                time.sleep(0.0001)
                held -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"), file_lock(tmp_path / "lock", wait=False) as second:
        assert not second
    with file_lock(tmp_path / "lock", wait=False) as third:
        assert third


def test_kill_9_releases_a_lock(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from patchwords.files import file_lock
with file_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""
    words = [sys.executable, "-c", program, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with file_lock(tmp_path / "lock", wait=False) as mine:
            assert not mine
        process.send_signal(signal.SIGKILL)
        with file_lock(tmp_path / "lock") as mine:
            assert mine


def test_a_fork_does_not_keep_a_lock(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
    try:
        deadline = time.monotonic() + 10  # the child must run once to close its copy
        free = False
        while not free and time.monotonic() < deadline:
            with file_lock(tmp_path / "lock", wait=False) as free:
                pass
        assert free
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="lock cannot be written"),
        file_lock(tmp_path / "no/lock"),
    ):
        pass


def test_duration() -> None:
    seconds = (0.04, 4.26, 9.94, 9.96, 59.7, 93.2, 125, 599.6, 784, 3_599, 7_384, 360_000)
    assert [format_duration(s) for s in seconds] == [
        *("0.0 s", "4.3 s", "9.9 s", "10 s", "1 min 0 s", "1 min 33 s", "2 min 5 s", "10 min"),
        *("13 min", "1 h 0 min", "2 h 3 min", "100 h 0 min"),
    ]
