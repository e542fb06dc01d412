"""Blocks of a study's page: headings, text, tables, figures, commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PageHeading:
    text: str


@dataclass(frozen=True)
class PageText:
    text: str


@dataclass(frozen=True)
class PageTable:
    """A table whose first column names its rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class PageFigure:
    name: str  # of the figure's files, without suffix
    alt: str


@dataclass(frozen=True)
class PageCommand:
    text: str


PageBlock = PageHeading | PageText | PageTable | PageFigure | PageCommand
