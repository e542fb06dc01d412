"""A request that is not answered, and why."""

from __future__ import annotations

from collections.abc import Mapping


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
