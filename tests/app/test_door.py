"""Who may come in, and what every answer carries."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest
from asked import App, photo

from patchwords.app.middleware import SECURITY_HEADERS
from patchwords.app.server import PAGE_FILES

ROUTES = {*PAGE_FILES, "/predict", "/look", "/model", "/health", "/openapi.json"}
FOLDER = files("patchwords.app") / "page"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:7860", 200),
        ("127.0.0.1:7860", 200),
        ("[::1]:7860", 200),
        ("evil.example", 403),
        ("localhost.evil.example:7860", 403),
        ("127.0.0.1.evil.example", 403),
        ("evil.example:7860@localhost", 200),  # what is before @ is no host
        ("localhost@evil.example", 403),
        ("", 403),
        ("[::1", 403),
    ],
)
def test_a_name_that_somebody_else_points_here_is_refused(app: App, host: str, status: int) -> None:
    assert app.client.get("/health", headers={"Host": host}).status_code == status


def test_beyond_this_machine_every_name_may_be_ours(start: Callable[..., App]) -> None:
    app = start(hosts=None)
    headers = {"Host": "gpu.example:7860"}
    assert app.client.get("/health", headers=headers).status_code == 200
    from_there = {**headers, "Origin": "http://evil.example"}
    assert app.client.get("/health", headers=from_there).status_code == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://localhost", 200),  # behind something that adds TLS
        ("http://localhost:8000", 403),
        ("http://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://[::1", 403),
    ],
)
def test_other_sites_cannot_ask(app: App, origin: str, status: int) -> None:
    headers = {"Origin": origin, "Content-Type": "image/png"}
    answer = app.client.post("/predict", content=photo(), headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert app.calls == (status == 200)


def test_there_is_no_preflight_either(app: App) -> None:
    headers = {"Origin": "http://localhost", "Access-Control-Request-Method": "POST"}
    assert app.client.options("/predict", headers=headers).status_code == 405


@pytest.mark.parametrize("path", [*sorted(ROUTES - {"/predict", "/look"}), "/nowhere", "/%2e%2e/x"])
def test_every_answer_is_sealed(app: App, path: str) -> None:
    answer = app.client.get(path)
    assert answer.status_code == (200 if path in ROUTES else 404)
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
    assert "server" not in answer.headers
    if answer.status_code == 404:
        assert answer.json() == {"error": "not found"}


def test_wrong_methods_are_one_line(app: App) -> None:
    answer = app.client.get("/predict")
    assert (answer.status_code, answer.json()) == (405, {"error": "method not allowed"})


@pytest.mark.parametrize("path", PAGE_FILES)
def test_pages_load_nothing_from_elsewhere(app: App, path: str) -> None:
    """And nothing that the policy would forbid: no inline script, style or handler."""
    name, kind = PAGE_FILES[path]
    answer = app.client.get(path)
    assert answer.headers["content-type"] == kind
    assert answer.text == (FOLDER / name).read_text(encoding="utf-8")
    text = answer.text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(https?:)?//[a-z]", text)
    if name.endswith("html"):
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text)
    assert "innerHTML" not in text


def test_the_interface_is_described(app: App) -> None:
    schema = app.client.get("/openapi.json").json()
    assert set(schema["paths"]) == {"/predict", "/model", "/health"}
    predict = schema["paths"]["/predict"]["post"]
    bodies = {"multipart/form-data", "image/*", "application/octet-stream"}
    assert set(predict["requestBody"]["content"]) == bodies
    answered = {"200", "400", "403", "408", "413", "415", "422", "429", "503", "504"}
    assert set(predict["responses"]) == answered


def test_there_are_no_other_routes(app: App) -> None:
    """FastAPI's own pages of documentation load scripts from elsewhere."""
    inside = app.client.app.app  # type: ignore[attr-defined]
    assert {route.path for route in inside.routes} == ROUTES
