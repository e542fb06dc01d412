"""The app on a socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from patchwords.app.limits import AppLimits
from patchwords.errors import ConfigError

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
