"""The app on a real socket: slow clients, stops, and the command."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from asked import LABELS, App, photo, subject_of

from patchwords.app.server import (
    create_uvicorn_server,
    format_socket_url,
    is_loopback_socket,
    open_listening_socket,
)
from patchwords.cli import main
from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.weights.store import save_pretrained


@contextmanager
def serving(app: App) -> Iterator[tuple[str, int]]:
    """The app on a free port, in a thread."""
    sock = open_listening_socket("127.0.0.1", 0)
    running = create_uvicorn_server(app.client.app, app.service.limits)  # type: ignore[arg-type]
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield sock.getsockname()[:2]
    finally:
        running.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
        sock.close()


def answered(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    connection.settimeout(10)
    parts = []
    while part := connection.recv(2**16):
        parts.append(part)
    return b"".join(parts)


def test_it_answers_on_a_socket(start: Callable[..., App]) -> None:
    app = start()
    with serving(app) as place, socket.create_connection(place) as connection:
        data = photo()
        head = (
            "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
            f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        connection.sendall(head.encode() + data)
        status, _, rest = answered(connection).partition(b"\r\n")
        assert status == b"HTTP/1.1 200 OK"
        found = json.loads(rest.partition(b"\r\n\r\n")[2])["predictions"]
        wanted = app.service.loaded.source.predict(data)
        assert [one["label"] for one in found] == [one["label"] for one in wanted]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 30_000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_harmless(
    start: Callable[..., App], said: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    app = start()
    with serving(app) as place:
        with socket.create_connection(place) as connection:
            connection.sendall(said)
            assert b" 400 " in answered(connection).partition(b"\r\n")[0]
        with urllib.request.urlopen(f"http://{place[0]}:{place[1]}/health") as answer:
            assert answer.status == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken() -> None:
    taken = open_listening_socket("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(
        ConfigError, match=rf"--port {port} of 127.0.0.1 is not available \(address"
    ):
        open_listening_socket("127.0.0.1", port)
    taken.close()
    open_listening_socket("127.0.0.1", port).close()  # at once, though the first has just gone


def test_addresses() -> None:
    for host, local in (("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)):
        with open_listening_socket(host, 0) as sock:
            assert is_loopback_socket(sock) == local
    with open_listening_socket("127.0.0.1", 0) as sock:
        assert format_socket_url(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    at = tmp_path_factory.mktemp("model")
    source = subject_of().source
    return save_pretrained(source.model, at, labels=LABELS, preprocess=source.preprocess)


def refused(*words: object) -> str:
    """The line that the command is refused with."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["app", *map(str, words)]) == 2
    assert out.getvalue() == ""
    assert err.getvalue().count("\n") == 1
    return err.getvalue().removeprefix("patchwords: ").rstrip()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "70000"), "--port 70000 must be 0 (any free port) to 65535"),
        (("--port", "x"), "--port 'x': expected a whole number"),
        (("--host", "no such host"), "--host 'no such host' is not an address of this machine"),
        (("--host", "192.0.2.1", "--port", "0"), "of 192.0.2.1 is not available"),
        (("--data", "nowhere", "--port", "0"), "nowhere: no such file or folder"),
        (("--cache-size", "0", "--port", "0"), "--cache-size 0 must be more than 0 GiB"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(folder, *words)


def test_a_model_without_classes_and_no_model(tmp_path: Path) -> None:
    config = ViTConfig(patch_size=4, width=8, depth=1, heads=1, mlp_width=8, image_size=(8, 8))
    model = subject_of(config.with_settings(num_classes=1)).model
    save_pretrained(model, tmp_path / "m", labels=())
    assert "was pre-trained without classes, so it names none" in refused(
        tmp_path / "m", "--port", 0
    )
    assert "no weights at " in refused(tmp_path / "nothing", "--port", 0)


def test_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    line = refused(folder)
    assert line.startswith("the app needs uvicorn, which cannot be imported (")
    assert line.endswith("pip install 'patchwords[app]'")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_stopped(
    folder: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    (tmp_path / "a.png").write_bytes(photo())
    everywhere = stop == signal.SIGTERM
    words = ["app", folder, "--port", "0", "--data", tmp_path, "--cache", tmp_path / "cache"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "patchwords", *map(str, words), "--device", "cpu"),
            *(("--host", "0.0.0.0") if everywhere else ()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r" answers at (http://\S+:\d+)   \(Ctrl-C stops it\)", line)
        assert found, (line, process.stderr)
        with urllib.request.urlopen(f"{found[1]}/health", timeout=20) as answer:
            assert json.load(answer) == {"status": "ok"}
        process.send_signal(stop)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "stopped\n")
    warning = (
        "patchwords: warning: anyone who can reach 0.0.0.0 can use this page; there is no password"
    )
    assert err == (f"{warning}\n" if everywhere else "")
