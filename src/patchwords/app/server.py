"""The app: its routes, its socket, and the server that runs until it is stopped.

| route | returns |
|---|---|
| `GET /` | the page |
| `POST /predict` | classes with probabilities of an image |
| `POST /look` | all that the page shows of an edited image |
| `GET /model` | name, classes and sizes of the model, state of the nearest photos |
| `GET /health` | whether the app answers |
| `GET /openapi.json`, `GET /docs` | the interface, for programs and as a page |
"""

from __future__ import annotations

import importlib
import ipaddress
import signal
import socket
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

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
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SOCKET_BACKLOG = 128  # connections that wait in the system
APP_PACKAGES = ("fastapi", "uvicorn", "python_multipart")  # of the extra `app`


class ClassScore(BaseModel):
    """A class with its probability."""

    label: str
    score: float


class PredictResponse(BaseModel):
    """The most likely classes."""

    predictions: list[ClassScore]


class ErrorResponse(BaseModel):
    """One line of error."""

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
        403: "called by another host name, or from another site",
        408: "the body was too slow",
        413: "too many bytes or pixels",
        415: "neither an image nor a form",
        422: "a parameter is out of its range",
        429: "too many requests in progress: see Retry-After",
        503: "the app is stopping",
        504: "the answer took too long",
    }.items()
}


def create_app(service: PredictionService, hosts: tuple[str, ...] | None) -> ASGIApp:
    """Create the ASGI app; `hosts` are the names by which it may be called, None: any."""
    app = FastAPI(
        title="patchwords",
        version=__version__,
        description="What a trained model sees in an image.",
        docs_url=None,  # FastAPI's own load scripts from elsewhere
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    add_error_handlers(app)
    add_page_routes(app)
    add_routes(app, service)
    return SecurityMiddleware(app, hosts)


def add_routes(app: FastAPI, service: PredictionService) -> None:
    """Add the routes that use the model."""

    @app.post(
        "/predict",
        summary="the most likely classes of an image",
        openapi_extra=IMAGE_BODY,
        responses=ERROR_RESPONSES,
    )
    async def predict(
        request: Request, top_k: int = Query(5, ge=1, le=1000, description="number of classes")
    ) -> PredictResponse:
        predictions = await service.predict(request, top_k)
        return PredictResponse(predictions=[ClassScore(**row) for row in predictions])

    @app.post("/look", include_in_schema=False)
    async def look(request: Request) -> JSONResponse:
        return JSONResponse(await service.analyse(request))

    @app.get("/model", summary="the model: classes, sizes that it takes, what the page can show")
    async def model() -> dict[str, Any]:
        return service.describe()

    @app.get("/health", summary="whether the app answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}


def add_page_routes(app: FastAPI) -> None:
    """Add the files of the page, read once: no path of a request is ever opened."""
    folder = files("patchwords.app") / "page"

    def add(route: str, content: bytes, kind: str) -> None:
        @app.get(route, include_in_schema=False)
        async def page() -> Response:
            return Response(content, media_type=kind)

    for route, (name, kind) in PAGE_FILES.items():
        add(route, (folder / name).read_bytes(), kind)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error with {"error": one line}."""

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
    async def internal(request: Request, error: Exception) -> JSONResponse:
        return make_error_response(500, "internal error of the app; see its terminal")


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Open a socket on which connections wait until `serve_app`; raise ConfigError if it fails."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} must be 0 (any free port) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host!r} is not an address of this machine: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(SOCKET_BACKLOG)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"--port {port} of {host} is not available ({reason.lower()}): choose another, such as "
            f"--port {port + 1 if 0 < port < 65535 else 0}"
        ) from error
    return sock


def is_loopback_socket(sock: socket.socket) -> bool:
    """Return whether only this machine can reach the socket."""
    return ipaddress.ip_address(sock.getsockname()[0]).is_loopback


def format_socket_url(sock: socket.socket) -> str:
    """Format the address of the page."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_app(app: ASGIApp, sock: socket.socket, limits: AppLimits) -> None:
    """Serve until Ctrl-C or SIGTERM; requests in progress then get a few seconds."""
    # uvicorn stops at a signal and raises it again at the end: here that is a normal end.
    handlers = {name: signal.signal(name, lambda *_: None) for name in STOP_SIGNALS}
    try:
        create_uvicorn_server(app, limits).run(sockets=[sock])
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)
        sock.close()


def create_uvicorn_server(app: ASGIApp, limits: AppLimits) -> uvicorn.Server:
    """Configure uvicorn: within the limits, without logs of requests."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=limits.stop_seconds,
    )
    return uvicorn.Server(config)


def require_app_packages() -> None:
    """Raise ConfigError if a package of the extra `app` cannot be imported."""
    for name in APP_PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            package = name.replace("_", "-")
            raise ConfigError(
                f"the app needs {package}, which cannot be imported ({error}): "
                "pip install 'patchwords[app]'"
            ) from error
