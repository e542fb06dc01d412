"""How much the app takes from its clients, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

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
