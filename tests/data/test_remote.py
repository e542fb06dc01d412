"""Files from elsewhere, over lines that break and from servers that are busy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from patchwords import download as remote
from patchwords.download import download_file, is_remote_url, list_matching_urls
from patchwords.errors import ConfigError, StorageError
from storage import Server, serving

CONTENT = bytes(range(251)) * 4001  # about 1 MB, of no round size


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", waited.append)
    return waited


@pytest.fixture
def server(tmp_path: Path, pauses: list[float]) -> Iterator[Server]:
    (tmp_path / "far").mkdir()
    (tmp_path / "far/x.tar").write_bytes(CONTENT)
    with serving(tmp_path / "far") as found:
        yield found


def test_what_is_far() -> None:
    assert is_remote_url("https://host/x.tar")
    assert is_remote_url("s3://bucket/x.tar")
    assert not is_remote_url("hf:name")
    assert not is_remote_url("a/b.tar")


def test_a_file_comes_whole(server: Server, tmp_path: Path) -> None:
    told: list[int] = []
    path = tmp_path / "here"
    path.write_bytes(b"y" * (len(CONTENT) + 99))  # of a transfer that was given up
    assert download_file(f"{server.address}/x.tar", path, len(CONTENT), told.append) == len(CONTENT)
    assert path.read_bytes() == CONTENT
    assert told == [len(CONTENT)]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_line_is_gone_on_with(
    server: Server, tmp_path: Path, ranges: bool, pauses: list[float]
) -> None:
    server.ranges = ranges
    server.faults = ["400009", "300007"]
    download_file(f"{server.address}/x.tar", tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == CONTENT
    second = "bytes=700016-" if ranges else "bytes=300007-"
    assert server.wanted == [None, "bytes=400009-", second]
    assert pauses == ([1.0, 1.0] if ranges else [1.0, 2.0])  # what brings more is no failure


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.faults = [503, 429, 500, 503]
    download_file(f"{server.address}/x.tar", tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == CONTENT
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_after_five_tries_the_address_is_named(
    server: Server, tmp_path: Path, pauses: list[float]
) -> None:
    url = f"{server.address}/x.tar"
    server.faults = [503] * 5
    with pytest.raises(StorageError, match=f"^{url}: cannot be read after 5 tries: the server say"):
        download_file(url, tmp_path / "here")
    assert server.asked == {"x.tar": 5}
    assert len(pauses) == 4
    server.ranges, server.faults = False, ["1000"] * 5
    with pytest.raises(StorageError, match=r"1,000 of 1,004,251 bytes came, then the line broke"):
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
        download_file(f"{server.address}/x.tar", here, expected=7)
    with pytest.raises(StorageError, match="does not list its files"):
        list_matching_urls(f"{server.address}/*.tar")
    with pytest.raises(StorageError, match=r"^s3://b/x.tar: s3:// needs .*pip install s3fs$"):
        download_file("s3://b/x.tar", here)
    with pytest.raises(StorageError, match="no storage that is known"):
        download_file("nowhere://b/x.tar", here)
    with pytest.raises(StorageError, match="there is no such file"):
        download_file("memory://nothing.tar", here)
    server.length = False
    with pytest.raises(StorageError, match="no Content-Length"):
        download_file(f"{server.address}/x.tar", here)
    with pytest.raises(ConfigError, match="cannot be written"):
        download_file(f"{server.address}/x.tar", tmp_path / "no" / "folder")
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
