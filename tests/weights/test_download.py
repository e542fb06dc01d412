"""Downloads against a server of our own, which breaks off and lies as asked."""

from __future__ import annotations

import base64
import hashlib
import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from patchwords import download
from patchwords.errors import ConfigError, WeightsError

CONTENT = bytes(range(251)) * 4001  # about 1 MB, of no round size


class Server(ThreadingHTTPServer):
    """Gives CONTENT; `give` bytes of it per answer at most, and what it says of the sum."""

    content = CONTENT
    give: int | None = None
    ranges = True
    md5: bytes | None = hashlib.md5(CONTENT).digest()
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.asked.append(wanted)
        if self.path != "/models/a.npz":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if not self.server.ranges:
            start = 0
        if start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if self.server.md5:
            text = base64.b64encode(self.server.md5).decode()
            self.send_header("x-goog-hash", f"crc32c=AAAAAA==,md5={text}")
        self.end_headers()
        self.wfile.write(body[: self.server.give])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path))
    monkeypatch.setattr(download, "WEB_SCHEMES", ("https", "http"))
    found = Server(("127.0.0.1", 0), Handler)
    found.asked = []
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def url(server: Server, path: str = "/models/a.npz") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_a_file_comes_whole_and_only_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = download.fetch_cached(url(server))
    assert path.read_bytes() == CONTENT
    assert path == tmp_path / "web" / "127.0.0.1" / "models" / "a.npz"
    assert download.fetch_cached(url(server)) == path
    assert server.asked == [None]
    assert "fetching a.npz (1 MiB)" in capsys.readouterr().err


def test_a_broken_transfer_is_gone_on_with(server: Server) -> None:
    server.give = 400_009
    with pytest.raises(WeightsError, match="the same command goes on from there"):
        download.fetch_cached(url(server))
    server.give = None
    assert download.fetch_cached(url(server)).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400009-"]


def test_a_server_without_ranges_begins_anew(server: Server) -> None:
    server.give = 400_009
    with pytest.raises(WeightsError):
        download.fetch_cached(url(server))
    server.give, server.ranges = None, False
    assert download.fetch_cached(url(server)).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(server: Server) -> None:
    path = download.get_web_cache_path(url(server))
    path.parent.mkdir(parents=True)
    (path.parent / ".a.npz.part").write_bytes(b"x" * (len(CONTENT) + 7))
    assert download.fetch_cached(url(server)).read_bytes() == CONTENT


def test_a_wrong_sum_is_refused_and_the_next_call_begins_anew(server: Server) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(WeightsError, match="came damaged"):
        download.fetch_cached(url(server))
    server.content = CONTENT
    assert download.fetch_cached(url(server)).read_bytes() == CONTENT
    assert server.asked == [None, None]


def test_two_at_once_fetch_it_once(server: Server) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(download.fetch_cached(url(server)).read_bytes())
        )
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 5
    assert server.asked == [None]


def test_a_disk_that_takes_no_more_is_not_taken_for_the_network(server: Server) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_003, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"a\.npz cannot be written"):
            download.fetch_cached(url(server))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert download.fetch_cached(url(server)).read_bytes() == CONTENT


def test_what_is_not_there_says_so(server: Server) -> None:
    with pytest.raises(WeightsError, match=r"there is no http://.*b\.npz"):
        download.fetch_cached(url(server, "/models/b.npz"))


def test_out_of_reach_names_the_file_and_where_to_put_it(server: Server, tmp_path: Path) -> None:
    address = url(server)
    server.shutdown()
    server.server_close()
    with pytest.raises(WeightsError) as caught:
        download.fetch_cached(address)
    place = tmp_path / "web" / "127.0.0.1" / "models" / "a.npz"
    assert f"{address} cannot be reached" in str(caught.value)
    assert f"put it at {place}" in str(caught.value)
    assert "\n" not in str(caught.value)
    place.write_bytes(CONTENT)  # as it advises
    assert download.fetch_cached(address) == place


@pytest.mark.parametrize(
    "wrong", ["ftp://host/a.npz", "file:///etc/passwd", "https://host", "https://host/../../a"]
)
def test_other_addresses_are_refused(wrong: str) -> None:
    with pytest.raises(WeightsError, match=r"only https|names no file"):
        download.fetch_cached(wrong)
