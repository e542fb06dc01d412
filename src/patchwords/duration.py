"""Times as a person reads them."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """Seconds in words; tenths of them only where there are few.

    >>> format_duration(8.42), format_duration(125), format_duration(7384)
    ('8.4 s', '2 min 5 s', '2 h 3 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
