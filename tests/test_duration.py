"""Times in words."""

from __future__ import annotations

from patchwords.files import format_duration


def test_duration() -> None:
    seconds = (0.04, 4.26, 9.94, 9.96, 59.7, 93.2, 125, 599.6, 784, 3_599, 7_384, 360_000)
    assert [format_duration(s) for s in seconds] == [
        *("0.0 s", "4.3 s", "9.9 s", "10 s", "1 min 0 s", "1 min 33 s", "2 min 5 s", "10 min"),
        *("13 min", "1 h 0 min", "2 h 3 min", "100 h 0 min"),
    ]
