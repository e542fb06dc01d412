"""What a benchmark found: rows, as Markdown for a page and as plain tables for JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.timing import Ratio, ratio

HEADER = (
    *("what", "ours", "peer", "theirs", "ratio (quartiles)", "at least", "met"),
    "of the peak",
)


@dataclass(frozen=True)
class Row:
    """One comparison. Without a ratio there was no peer to compare with."""

    what: str
    unit: str
    ours: float
    peer: str = ""
    theirs: float | None = None
    ratio: Ratio | None = None
    goal: float | None = None  # what the ratio should be at least
    share: float | None = None  # of the machine's fastest matrix products, that ours reaches

    @property
    def met(self) -> bool | None:
        """None where nothing was asked, or nothing was there to compare with."""
        return None if self.goal is None or self.ratio is None else self.ratio.median >= self.goal

    def cells(self) -> list[str]:
        goal = "" if self.goal is None else f"{self.goal:g}x"
        found = "" if self.ratio is None else shown(self.ratio)
        met = {None: "", True: "met", False: "**not met**"}[self.met]
        theirs = "" if self.theirs is None else f"{number(self.theirs)} {self.unit}"
        share = "" if self.share is None else f"{self.share:.0%}"
        return [
            *(self.what, f"{number(self.ours)} {self.unit}", self.peer, theirs),
            *(found, goal, met, share),
        ]

    def record(self) -> dict[str, Any]:
        return {**vars(self), "ratio": self.ratio and vars(self.ratio), "met": self.met}


@dataclass
class Section:
    """All that one benchmark says."""

    name: str
    header: Sequence[str] = HEADER
    rows: list[list[str]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)  # the rows for programs
    remarks: list[str] = field(default_factory=list)  # how it was measured, what was skipped

    def add(self, row: Row) -> None:
        self.rows.append(row.cells())
        self.records.append(row.record())

    def remark(self, line: str) -> None:
        """Said once, however often it comes."""
        if line not in self.remarks:
            self.remarks.append(line)

    def markdown(self) -> str:
        lines = [f"## {self.name}", ""]
        if self.rows:
            lines += [line_of(self.header), "|" + "---|" * len(self.header)]
            lines += [line_of(cells) for cells in self.rows]
            lines.append("")
        return "\n".join([*lines, *(f"- {remark}" for remark in self.remarks)])

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "rows": self.records, "remarks": self.remarks}


def compare(
    what: str,
    unit: str,
    ours: Sequence[float],
    peer: tuple[str, Sequence[float]] | None,
    *,
    goal: float | None = None,
    work: float | None = None,
    share: float | None = None,
) -> Row:
    """A row from numbers of each round, of which less is better.

    Where `work` is given they are the seconds of so much work, and are shown as work a second.
    """
    if peer is None:
        return Row(what, unit, typical(ours, work), goal=goal, share=share)
    name, theirs = peer
    return Row(
        what,
        unit,
        typical(ours, work),
        name,
        typical(theirs, work),
        ratio(ours, theirs),
        goal,
        share,
    )


def typical(values: Sequence[float], work: float | None) -> float:
    median = statistics.median(values)
    return median if work is None else work / median


def shown(found: Ratio) -> str:
    return f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f})"


def number(value: float) -> str:
    """Three digits that matter.

    >>> number(1234.5), number(0.01234)
    ('1,234', '0.0123')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def line_of(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
