"""Limits of the app, its error responses, and checks of host and origin.

Pages of other sites can make a browser on this machine send requests to the app. They are refused
by `Host` (another name that resolves to 127.0.0.1: DNS rebinding) and by `Origin` (a form or script
of another site). There is no CORS, so they could not read a response either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIB = 2**20
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class AppLimits:
    """Limits of a request, each with the status of its refusal."""

    body: int = 20 * MIB  # bytes of a request; 413
    pixels: int = 50_000_000  # of an image, checked before it is decoded; 413
    requests: int = 8  # images in progress, together up to 8 bodies in memory; 429
    upload_seconds: float = 30.0  # until the body is complete; 408
    answer_seconds: float = 60.0  # from then until the answer; 504
    connections: int = 64  # at once; 503
    stop_seconds: int = 5  # for requests in progress when the app stops


class RequestRefused(Exception):
    """A refused request: HTTP status, one line for the client, and headers."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})


class SecurityMiddleware:
    """Refuses requests by other names or from other sites, and adds security headers.

    Args:
        hosts: names by which the app may be called; None: any.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        app = self.refuse(Headers(scope=scope)) or self.app
        await app(scope, receive, send_with_headers)

    def refuse(self, headers: Headers) -> ASGIApp | None:
        """Return the response to a request that may not pass, or None."""
        host = headers.get("host", "")
        if self.hosts is not None and parse_hostname(host) not in self.hosts:
            return make_error_response(403, "this app answers only by its own host name")
        origin = headers.get("origin")
        if origin is not None and parse_netloc(origin) != host.lower():
            return make_error_response(403, "requests from other sites are refused")
        return None


def make_error_response(
    status: int, reason: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Make a JSON response with one line of error."""
    return JSONResponse({"error": reason}, status, headers)


def parse_hostname(host: str) -> str:
    """Parse a Host header without its port, in lower case; "" if it is invalid.

    >>> parse_hostname("LocalHost:7860"), parse_hostname("[::1]:7860"), parse_hostname("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def parse_netloc(origin: str) -> str:
    """Parse host and port of an Origin header; "" for "null" and invalid values."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
