"""The routes of the app: the page, and the same over HTTP.

| route | gives |
|---|---|
| `GET /` | the page |
| `POST /predict` | an image -> classes with probabilities |
| `POST /look` | an image with edits -> all that the page shows |
| `GET /model` | what the page has to know of the model |
| `GET /health`, `GET /metrics` | whether it answers; Prometheus' text |
| `GET /openapi.json`, `GET /docs` | the interface, for programs and for people |
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import signal
import socket
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from patchwords.app.metrics import PROMETHEUS_CONTENT_TYPE
from patchwords.app.middleware import (
    AppLimits,
    RequestRefused,
    SecurityMiddleware,
    make_error_response,
)
from patchwords.app.service import PredictionService
from patchwords.errors import ConfigError
from patchwords.version import __version__

PAGE_FILES = {  # route -> (file, content type)
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/canvas.js": ("canvas.js", "text/javascript; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
ROUTES = {*PAGE_FILES, "/predict", "/look", "/model", "/health", "/metrics", "/openapi.json"}


class ClassScore(BaseModel):
    label: str
    score: float


class PredictResponse(BaseModel):
    predictions: list[ClassScore]


class ErrorResponse(BaseModel):
    error: str


BINARY_SCHEMA = {"type": "string", "format": "binary"}
IMAGE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": BINARY_SCHEMA},
                }
            },
            "image/*": {"schema": BINARY_SCHEMA},
            "application/octet-stream": {"schema": BINARY_SCHEMA},
        },
    }
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": meaning}
    for status, meaning in {
        400: "not a sound image, or the form cannot be read",
        403: "asked by another name, or from another site",
        408: "the body came too slowly",
        413: "too many bytes or pixels",
        415: "neither an image nor a form",
        422: "a parameter is out of its range",
        429: "too much to do now: see Retry-After",
        503: "the app is stopping",
        504: "the answer took too long",
    }.items()
}


def create_app(desk: PredictionService, hosts: tuple[str, ...] | None) -> ASGIApp:
    """The app as ASGI. `hosts` are the names by which it may be called; None: any."""
    app = FastAPI(
        title="patchwords",
        version=__version__,
        description="What a trained model sees in an image.",
        docs_url=None,  # those of FastAPI load scripts from elsewhere
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    add_error_handlers(app)
    add_page_routes(app)
    add_inference_routes(app, desk)
    add_status_routes(app, desk)
    return SecurityMiddleware(app, desk.limits, desk.metrics, hosts, ROUTES)


def add_inference_routes(app: FastAPI, desk: PredictionService) -> None:
    @app.post(
        "/predict",
        summary="the likeliest classes of an image",
        openapi_extra=IMAGE_BODY,
        responses=ERROR_RESPONSES,
    )
    async def predict(
        request: Request, top_k: int = Query(5, ge=1, le=1000, description="classes to name")
    ) -> PredictResponse:
        found = await desk.predict(request, top_k)
        return PredictResponse(predictions=[ClassScore(**one) for one in found])

    @app.post("/look", include_in_schema=False)
    async def look(request: Request) -> JSONResponse:
        return JSONResponse(await desk.look(request))


def add_status_routes(app: FastAPI, desk: PredictionService) -> None:
    @app.get("/model", summary="the model: classes, sizes that it takes, what the page can show")
    async def model() -> dict[str, Any]:
        return desk.describe()

    @app.get("/health", summary="whether the app answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/metrics",
        summary="requests, errors, batches, seconds and queue, for Prometheus",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(desk.metrics.text(desk.now()), media_type=PROMETHEUS_CONTENT_TYPE)


def add_page_routes(app: FastAPI) -> None:
    """The files of the page, read once: no path that a client says is ever opened."""
    folder = files("patchwords.app") / "page"

    def add(route: str, content: bytes, kind: str) -> None:
        @app.get(route, include_in_schema=False)
        async def page() -> Response:
            return Response(content, media_type=kind)

    for route, (name, kind) in PAGE_FILES.items():
        add(route, (folder / name).read_bytes(), kind)


def add_error_handlers(app: FastAPI) -> None:
    """Every fault is {"error": one line}."""

    @app.exception_handler(RequestRefused)
    async def refused(request: Request, error: RequestRefused) -> JSONResponse:
        return make_error_response(error.status, error.reason, error.headers)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return make_error_response(
            error.status_code, str(error.detail).lower(), dict(error.headers or {})
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return make_error_response(
            422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg'].lower()}"
        )

    @app.exception_handler(Exception)
    async def ours(request: Request, error: Exception) -> JSONResponse:
        return make_error_response(500, "a fault of the app itself; its terminal says more")


# The app on a socket, until it is told to stop.


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SOCKET_BACKLOG = 128  # connections that the system keeps for us


def open_listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which connections wait until `serve_app`; raises ConfigError where there is none."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} must be 0 (any that is free) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host!r} is no address of this machine: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(SOCKET_BACKLOG)
    except OSError as error:
        sock.close()
        said = error.strerror or str(error)
        raise ConfigError(
            f"--port {port} of {host} cannot be had ({said.lower()}): choose another, as --port "
            f"{port + 1 if 0 < port < 65535 else 0}"
        ) from error
    return sock


def is_loopback_socket(sock: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(sock.getsockname()[0]).is_loopback


def format_socket_url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_app(app: ASGIApp, sock: socket.socket, limits: AppLimits) -> None:
    """Answers until Ctrl-C or SIGTERM; requests in work then get a few seconds."""
    # uvicorn stops at a signal and raises it again at the end: for us that is a good end.
    before = {name: signal.signal(name, lambda *_: None) for name in STOP_SIGNALS}
    try:
        create_uvicorn_server(app, limits).run(sockets=[sock])
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        sock.close()


def create_uvicorn_server(app: ASGIApp, limits: AppLimits) -> uvicorn.Server:
    """uvicorn, quiet and within the limits."""
    config = uvicorn.Config(
        app,
        http=HeaderTimeoutProtocol.within(limits.header_seconds),
        ws="none",
        lifespan="off",
        log_level="error",  # nobody's requests are written down
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=limits.stop_seconds,
    )
    return uvicorn.Server(config)


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1 that waits so long, and not longer, for a connection to ask (or ask again)."""

    seconds = 10.0
    alarm: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, seconds: float) -> type[HeaderTimeoutProtocol]:
        return type("Patient", (cls,), {"seconds": seconds})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.wind()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.wind()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.alarm is not None:
            self.alarm.cancel()
        super().connection_lost(exc)

    def wind(self) -> None:
        if self.alarm is not None:
            self.alarm.cancel()
        self.alarm = self.loop.call_later(self.seconds, self.give_up)

    def give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


# The packages of the extra `app`, and the line for a person who lacks them.


APP_PACKAGES = ("fastapi", "uvicorn", "python_multipart")


def require_app_packages() -> None:
    """Raise ConfigError where one of the packages is not there or does not load."""
    for name in APP_PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            package = name.replace("_", "-")
            raise ConfigError(
                f"the app needs {package}, which cannot be imported ({error}): "
                "pip install 'patchwords[app]'"
            ) from error
