"""Who may come in, and what every answer carries: the outermost layer of the app.

Pages of other sites can make a browser on this machine send requests here. They are told apart by
`Host` (a name of theirs that points to 127.0.0.1: DNS rebinding) and by `Origin` (a form or a
script of theirs). There is no CORS, so they could not read an answer either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchwords.app.metrics import AppMetrics

# How much the app takes from its clients, and for how long.


MIB = 2**20


@dataclass(frozen=True)
class AppLimits:
    """What is beyond is refused, each by its own status."""

    body: int = 20 * MIB  # bytes of a request; 413
    held: int = 256 * MIB  # bytes of all requests that are in work; 429
    pixels: int = 50_000_000  # of an image, before it is decoded; 413
    requests: int = 64  # in work at once; 429
    batch: int = 16  # images that go through the model together
    wait_seconds: float = 0.005  # for others to come into the batch
    upload_seconds: float = 30.0  # until the body is here; 408
    answer_seconds: float = 60.0  # from then until the answer; 504
    header_seconds: float = 10.0  # until a connection has asked something; it is closed
    connections: int = 256  # at once; 503
    stop_seconds: int = 5  # for requests in work when the app is told to stop

    @property
    def request_seconds(self) -> float:
        """For all of a request, a client that reads its answer slowly included."""
        return self.upload_seconds + self.answer_seconds + self.header_seconds


APP_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": APP_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
OTHER_ROUTE = "other"  # a path that is none of ours: what clients ask for must not become names


class SecurityMiddleware:
    """An ASGI app around another.

    Args:
        hosts: names by which the app may be called; None: any.
        routes: paths that are counted by name.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: AppLimits,
        metrics: AppMetrics,
        hosts: Collection[str] | None,
        routes: Collection[str],
    ) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.hosts, self.routes = hosts, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def sealed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            app = self.refusal(Headers(scope=scope)) or self.app
            await asyncio.wait_for(app(scope, receive, sealed), timeout=self.limits.request_seconds)
        except asyncio.TimeoutError:
            if status:  # half an answer is out: the connection ends with it
                raise
            await make_error_response(504, "this took too long")(scope, receive, sealed)
        finally:
            path = scope["path"]
            route = path if path in self.routes else OTHER_ROUTE
            self.metrics.request(route, status or 500, time.monotonic() - began)

    def refusal(self, headers: Headers) -> ASGIApp | None:
        """The answer to whoever may not come in."""
        host = headers.get("host", "")
        if self.hosts is not None and parse_hostname(host) not in self.hosts:
            return make_error_response(
                403, "this app answers only to the name that it was started with"
            )
        origin = headers.get("origin")
        if origin is not None and parse_netloc(origin) != host.lower():
            return make_error_response(403, "requests from other sites are not answered")
        return None


def make_error_response(
    status: int, reason: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """One line, as JSON."""
    return JSONResponse({"error": reason}, status, headers)


def parse_hostname(host: str) -> str:
    """A Host header without its port, in lower case; "" for what is none.

    >>> parse_hostname("LocalHost:7860"), parse_hostname("[::1]:7860"), parse_hostname("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def parse_netloc(origin: str) -> str:
    """The host and port of an Origin header; "" for "null" and for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


# A request that is not answered, and why.


class RequestRefused(Exception):
    """`status` is that of HTTP; the text is one line for whoever asked."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})


def busy_error(reason: str) -> RequestRefused:
    """There is too much to do now: 429, and when to come again."""
    return RequestRefused(429, f"busy: {reason}; try again in a second", {"Retry-After": "1"})
