"""Downloads over connections that break, from servers that are busy, to disks that are full."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from patchwords import download
from patchwords.download import (
    download_file,
    fetch_cached,
    get_web_cache_path,
    is_remote_url,
    list_matching_urls,
)
from patchwords.errors import ConfigError, StorageError, WeightsError
from storage import Server, serving

CONTENT = bytes(range(251)) * 4001  # about 1 MB, of no round size
OTHER = CONTENT[::-1]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waited.append)
    return waited


@pytest.fixture
def server(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "CACHED_SCHEMES", ("https", "http"))
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/x.tar").write_bytes(CONTENT)
    with serving(tmp_path / "remote") as running:
        yield running


def url_of(server: Server) -> str:
    return f"{server.address}/x.tar"


def test_what_is_remote() -> None:
    assert is_remote_url("https://host/x.tar")
    assert is_remote_url("s3://bucket/x.tar")
    assert not is_remote_url("hf:name")
    assert not is_remote_url("a/b.tar")


def test_a_file_comes_whole(server: Server, tmp_path: Path) -> None:
    reserved: list[int] = []
    path = tmp_path / "here"
    path.write_bytes(b"y" * (len(CONTENT) + 99))  # of a transfer that was given up
    assert download_file(url_of(server), path, len(CONTENT), reserved.append) == len(CONTENT)
    assert path.read_bytes() == CONTENT
    assert reserved == [len(CONTENT)]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_continues(
    server: Server, tmp_path: Path, ranges: bool, pauses: list[float]
) -> None:
    server.ranges = ranges
    server.faults = ["400009", "300007"]
    download_file(url_of(server), tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == CONTENT
    second = "bytes=700016-" if ranges else "bytes=300007-"
    assert server.wanted == [None, "bytes=400009-", second]
    assert pauses == ([1.0, 1.0] if ranges else [1.0, 2.0])  # what brings more is no failure


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.faults = [503, 429, 500, 503]
    download_file(url_of(server), tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == CONTENT
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_after_five_tries_the_address_is_named(
    server: Server, tmp_path: Path, pauses: list[float]
) -> None:
    url = url_of(server)
    server.faults = [503] * 5
    with pytest.raises(StorageError, match=f"^{url}: cannot be read after 5 tries: the server say"):
        download_file(url, tmp_path / "here")
    assert server.asked == {"x.tar": 5}
    assert len(pauses) == 4
    server.ranges, server.faults = False, ["1000"] * 5
    with pytest.raises(StorageError, match=r"1,000 of 1,004,251 bytes came, then the connection"):
        download_file(url, tmp_path / "here")
    with pytest.raises(StorageError, match=r"after 5 tries: .*refused"):
        download_file("http://127.0.0.1:9/x.tar", tmp_path / "here")


def test_what_will_not_be_better_is_not_tried_again(
    server: Server, tmp_path: Path, pauses: list[float]
) -> None:
    here = tmp_path / "here"
    with pytest.raises(StorageError, match=r"/y.tar: the server says 404"):
        download_file(f"{server.address}/y.tar", here)
    with pytest.raises(StorageError, match=r"has 1,004,251 bytes, but had 7 when it was indexed"):
        download_file(url_of(server), here, expected=7)
    with pytest.raises(StorageError, match="does not list its files"):
        list_matching_urls(f"{server.address}/*.tar")
    with pytest.raises(StorageError, match=r"^s3://b/x.tar: s3:// needs .*pip install s3fs$"):
        download_file("s3://b/x.tar", here)
    with pytest.raises(StorageError, match="is not a known storage"):
        download_file("nowhere://b/x.tar", here)
    with pytest.raises(StorageError, match="there is no such file"):
        download_file("memory://nothing.tar", here)
    server.length = False
    with pytest.raises(StorageError, match="no Content-Length"):
        download_file(url_of(server), here)
    with pytest.raises(ConfigError, match="cannot be written"):
        download_file(url_of(server), tmp_path / "no" / "folder")
    assert pauses == []


def test_object_storage_goes_by_fsspec(tmp_path: Path, pauses: list[float]) -> None:
    storage = fsspec.filesystem("memory")
    for name in ("b", "a"):
        storage.pipe(f"/bucket/{name}.tar", CONTENT)
    assert list_matching_urls("memory://bucket/*.tar") == [
        "memory:///bucket/a.tar",
        "memory:///bucket/b.tar",
    ]
    download_file("memory://bucket/a.tar", tmp_path / "here", len(CONTENT))
    assert (tmp_path / "here").read_bytes() == CONTENT


# The cache that processes share


def leave_a_part(server: Server, broken: str = "400009") -> None:
    """Every attempt of one call breaks off: the last two bring nothing."""
    server.faults = [broken, 503, 503]
    with pytest.raises(WeightsError, match="the server says 503"):
        fetch_cached(url_of(server))
    assert server.faults == []
    server.wanted.clear()


def test_a_file_is_fetched_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fetch_cached(url_of(server))
    assert path.read_bytes() == CONTENT
    assert path == tmp_path / "cache" / "web" / "127.0.0.1" / "x.tar"
    assert fetch_cached(url_of(server)) == path
    assert server.asked == {"x.tar": 1}
    assert capsys.readouterr().err == "fetching x.tar (1 MiB)\n"


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("etags", [True, False])
def test_the_next_call_continues(server: Server, sums: bool, etags: bool) -> None:
    server.sums, server.etags = sums, etags
    leave_a_part(server)
    path = fetch_cached(url_of(server))
    assert path.read_bytes() == CONTENT
    assert server.wanted == ["bytes=400009-"]
    assert sorted(file.name for file in path.parent.iterdir()) == [".x.tar.lock", "x.tar"]


@pytest.mark.parametrize("content", [OTHER, OTHER[:300_007], OTHER * 2])
def test_a_part_of_an_earlier_version_is_thrown_away(
    server: Server, content: bytes, tmp_path: Path
) -> None:
    server.etags = True
    leave_a_part(server)
    (tmp_path / "remote/x.tar").write_bytes(content)
    assert fetch_cached(url_of(server)).read_bytes() == content


def test_a_server_without_ranges_starts_over(server: Server) -> None:
    leave_a_part(server)
    server.ranges = False
    server.faults = ["1009", 503, 503]  # less than is there already
    with pytest.raises(WeightsError):
        fetch_cached(url_of(server))
    server.ranges = True
    assert fetch_cached(url_of(server)).read_bytes() == CONTENT
    assert server.wanted[-1] == "bytes=1009-"


def test_a_part_longer_than_the_file_is_thrown_away(server: Server) -> None:
    path = get_web_cache_path(url_of(server))
    path.parent.mkdir(parents=True)
    (path.parent / ".x.tar.part").write_bytes(b"x" * (len(CONTENT) + 7))
    assert fetch_cached(url_of(server)).read_bytes() == CONTENT


def test_a_wrong_sum_is_refused_and_the_next_call_starts_over(server: Server) -> None:
    server.sums = True
    path = get_web_cache_path(url_of(server))
    path.parent.mkdir(parents=True)
    (path.parent / ".x.tar.part").write_bytes(b"wrong")
    with pytest.raises(WeightsError, match="came damaged"):
        fetch_cached(url_of(server))
    assert fetch_cached(url_of(server)).read_bytes() == CONTENT
    assert server.wanted == ["bytes=5-", None]


def test_a_file_that_changes_under_a_download_is_read_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults = ["400009"]
    longer = OTHER + b"more"
    monkeypatch.setattr(
        download.time, "sleep", lambda _: (tmp_path / "remote/x.tar").write_bytes(longer)
    )
    assert fetch_cached(url_of(server)).read_bytes() == longer


def test_threads_fetch_it_once(server: Server) -> None:
    contents: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: contents.append(fetch_cached(url_of(server)).read_bytes()))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [CONTENT] * 5
    assert server.wanted == [None]


FETCH = """
import sys, time
from patchwords import download
download.CACHED_SCHEMES = ("http",)
write = download._write_chunk
def write_and_say(file, chunk, path):
    write(file, chunk, path)
    file.flush()
    print("writing", flush=True)
    time.sleep(float(sys.argv[2]))
download.CHUNK_BYTES = 100_003
download._write_chunk = write_and_say
print(download.fetch_cached(sys.argv[1]))
"""


def test_processes_fetch_it_once_and_a_killed_one_leaves_its_part(server: Server) -> None:
    def start(pause: float) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", FETCH, url_of(server), str(pause)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ)

    with start(60) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "writing\n"
        others = [start(0) for _ in range(2)]  # they wait for the lock
        killed.send_signal(signal.SIGKILL)
    paths = {process.communicate(timeout=60)[0].splitlines()[-1] for process in others}
    assert [process.returncode for process in others] == [0, 0]
    assert Path(paths.pop()).read_bytes() == CONTENT
    assert not paths
    assert server.wanted == [None, "bytes=100003-"]


def test_a_full_disk_is_not_taken_for_the_network(server: Server) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_003, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"x\.tar\.part cannot be written"):
            fetch_cached(url_of(server))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert fetch_cached(url_of(server)).read_bytes() == CONTENT


def test_what_cannot_be_fetched_says_where_to_put_it(server: Server, tmp_path: Path) -> None:
    url, place = url_of(server), tmp_path / "cache" / "web" / "127.0.0.1" / "x.tar"
    with pytest.raises(WeightsError, match=r"y\.tar: the server says 404.*; check the name, or"):
        fetch_cached(f"{server.address}/y.tar")
    server.shutdown()
    server.server_close()
    with pytest.raises(WeightsError) as caught:
        fetch_cached(url)
    assert f"{url}: cannot be read after 3 tries: " in str(caught.value)
    assert f"put it at {place}" in str(caught.value)
    assert "\n" not in str(caught.value)
    place.write_bytes(CONTENT)  # as it advises
    assert fetch_cached(url) == place


@pytest.mark.parametrize(
    "wrong", ["ftp://host/a.npz", "file:///etc/passwd", "https://host", "https://host/../../a"]
)
def test_other_addresses_are_refused(wrong: str) -> None:
    with pytest.raises(WeightsError, match=r"only https|names no file"):
        fetch_cached(wrong)
