"""The cache of shards: whole entries, bounded, shared, and none the worse for kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from patchwords.data.shards.cache import FetchEntry, ReserveSpace, ShardCache
from patchwords.errors import ConfigError, StorageError
from patchwords.files import file_lock

SIZE = 101  # bytes of an entry


def writes(content: bytes, brought: list[bytes] | None = None) -> FetchEntry:
    def bring(part: Path, reserve: ReserveSpace) -> None:
        reserve(len(content))
        assert part.stat().st_size == len(content)  # counted before it is there
        if brought is not None:
            brought.append(content)
        with open(part, "r+b") as file:
            file.write(content)

    return bring


def entry(letter: str) -> bytes:
    return letter.encode() * SIZE


def names(cache: ShardCache) -> list[str]:
    return sorted(name for name in os.listdir(cache.folder) if not name.startswith("."))


def use(cache: ShardCache, letter: str) -> None:
    with cache.open(letter, writes(entry(letter))) as file:
        assert file.read() == entry(letter)
    time.sleep(0.002)  # so that the times of use differ


def test_an_entry_is_brought_once(tmp_path: Path) -> None:
    cache, brought = ShardCache(tmp_path / "c", 1000), []
    for _ in range(3):
        with cache.open("a", writes(entry("a"), brought)) as file:
            assert file.read() == entry("a")
    assert len(brought) == 1


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "c", 3 * SIZE)
    for letter in "abcad":
        use(cache, letter)
    assert names(cache) == ["a", "c", "d"]
    with cache.open("a", writes(b"")) as file:  # what is open can be read though it is dropped
        for letter in "efgh":
            use(cache, letter)
        assert "a" not in names(cache)
        assert file.read() == entry("a")


def test_nothing_to_keep_makes_room_for_what_comes_ahead(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "c", 2 * SIZE)
    use(cache, "a")
    use(cache, "b")
    bring = writes(entry("c"))
    assert not cache.bring_ahead("c", SIZE, bring, keep={"a", "b", "c"})
    assert names(cache) == ["a", "b"]
    assert cache.bring_ahead("c", SIZE, bring, keep={"b", "c"})
    assert names(cache) == ["b", "c"]
    assert cache.bring_ahead("c", SIZE, bring, keep=set())  # there already


def test_one_brings_and_the_others_wait(tmp_path: Path) -> None:
    cache, brought = ShardCache(tmp_path / "c", 1000), []

    def slowly(part: Path, reserve: ReserveSpace) -> None:
        time.sleep(0.1)
        writes(entry("a"), brought)(part, reserve)

    def read() -> None:
        with cache.open("a", slowly) as file:
            assert file.read() == entry("a")

    threads = [threading.Thread(target=read) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert not cache.bring_ahead("a", SIZE, slowly, keep=set())  # another is at it
    for thread in threads:
        thread.join()
    assert len(brought) == 1


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "c", 1000)

    def fails(part: Path, reserve: ReserveSpace) -> None:
        writes(entry("a"))(part, reserve)
        raise StorageError("the line broke")

    with pytest.raises(StorageError, match="the line broke"):
        cache.open("a", fails)
    assert not [name for name in os.listdir(cache.folder) if not name.endswith((".lock", ".room"))]
    use(cache, "a")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        ShardCache(tmp_path / "file", 10).open("a", fails)


def test_a_cache_that_cannot_hold_an_entry_says_so(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "c", 1000)

    def dropped_at_once(part: Path, reserve: ReserveSpace) -> None:
        part.symlink_to("nowhere")

    with pytest.raises(StorageError, match="is dropped as soon as it is fetched; raise --cache-s"):
        cache.open("a", dropped_at_once)


KILLED = """
import sys, time
from pathlib import Path
from patchwords.data.shards.cache import ShardCache
def bring(part, reserve):
    reserve(1_000_003)
    part.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
ShardCache(Path(sys.argv[1]), 2_000_003).open("big", bring)
"""


def test_kill_9_leaves_no_half_entry_and_no_lock(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "c", 2_000_003)
    words = [sys.executable, "-c", KILLED, str(cache.folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        use(cache, "b")  # while the other is alive, its part is left alone
        assert (cache.folder / ".big.part").exists()
        process.send_signal(signal.SIGKILL)
    assert names(cache) == ["b"]
    use(cache, "c")
    assert not (cache.folder / ".big.part").exists()
    with cache.open("big", writes(b"whole")) as file:
        assert file.read() == b"whole"


def test_processes_share_it_within_its_bound(tmp_path: Path) -> None:
    """Four processes read 12 entries in orders of their own; the disk is looked at all along."""
    script = """
import random, sys
from pathlib import Path
from patchwords.data.shards.cache import ShardCache
cache = ShardCache(Path(sys.argv[1]), 6 * 10007)
order = random.Random(int(sys.argv[2]))
for _ in range(60):
    number = order.randrange(12)
    def bring(part, reserve):
        reserve(10007)
        with open(part, "r+b") as file:
            file.write(bytes([number]) * 10007)
    with cache.open(f"e{number}", bring) as file:
        assert file.read() == bytes([number]) * 10007
"""
    folder = tmp_path / "c"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(folder), str(seed)])
        for seed in range(4)
    ]
    folder.mkdir()
    most = 0
    while any(process.poll() is None for process in processes):
        with file_lock(folder / ".room"):
            most = max(most, sum(found.stat().st_size for found in os.scandir(folder)))
    assert [process.returncode for process in processes] == [0] * 4
    assert 3 * 10007 < most <= 6 * 10007
