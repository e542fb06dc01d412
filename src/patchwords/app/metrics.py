"""What the app has done, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How many observations lie at or below each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: beyond all bounds
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        below = 0
        comma = "," if labels else ""
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{name}_bucket{{{labels}{comma}le="{edge}"}} {below}'
        braced = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braced} {self.total:g}"
        yield f"{name}_count{braced} {below}"


class AppMetrics:
    """Counts since the start; safe to use from every thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: Counter[tuple[str, int]] = Counter()  # (route, status)
        self.seconds: dict[str, Histogram] = {}  # by route
        self.batches = Histogram(BATCH_SIZE_BUCKETS)

    def request(self, route: str, status: int, seconds: float) -> None:
        """One request has ended."""
        with self.lock:
            self.requests[route, status] += 1
            self.seconds.setdefault(route, Histogram(LATENCY_BUCKETS)).observe(seconds)

    def batch(self, size: int) -> None:
        """So many images went through the model together."""
        with self.lock:
            self.batches.observe(size)

    def text(self, now: Mapping[str, tuple[float, str]]) -> str:
        """Everything, with the numbers of this moment: name -> (value, what it is)."""
        with self.lock:
            lines = [*self.request_lines()]
            lines += [
                "# HELP patchwords_batch_images Images that went through the model together.",
                "# TYPE patchwords_batch_images histogram",
                *self.batches.lines("patchwords_batch_images"),
            ]
        for name, (value, meaning) in now.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"

    def request_lines(self) -> Iterator[str]:
        yield "# HELP patchwords_requests_total Requests that were answered."
        yield "# TYPE patchwords_requests_total counter"
        for (route, status), count in sorted(self.requests.items()):
            yield f'patchwords_requests_total{{route="{route}",status="{status}"}} {count}'
        yield "# HELP patchwords_errors_total Requests that were answered by status 400 or above."
        yield "# TYPE patchwords_errors_total counter"
        for route in sorted({route for route, _ in self.requests}):
            wrong = sum(
                n for (at, status), n in self.requests.items() if at == route and status >= 400
            )
            yield f'patchwords_errors_total{{route="{route}"}} {wrong}'
        yield "# HELP patchwords_request_seconds From the first byte asked to the last answered."
        yield "# TYPE patchwords_request_seconds histogram"
        for route, histogram in sorted(self.seconds.items()):
            yield from histogram.lines("patchwords_request_seconds", f'route="{route}"')
