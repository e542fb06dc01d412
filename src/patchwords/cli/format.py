"""Text and tables that several commands print."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from patchwords.errors import escape_control_characters
from patchwords.files import format_duration
from patchwords.report.format import format_compact, pluralise

CONSOLE_WIDTH = 100


class _EscapedText:
    """Something to print, its control characters visible; colours are not part of its text."""

    def __init__(self, content: ConsoleRenderable) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            text, style, control = segment
            yield segment if control else Segment(escape_control_characters(text), style)


class _EscapeHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_EscapedText(content) for content in renderables]


def make_console(**options: Any) -> Console:
    """Make a console for names that come out of files: no control character reaches the terminal."""
    console = Console(**options)
    console.push_render_hook(_EscapeHook())
    return console


def print_section(console: Console, title: str, rows: list[tuple[str, str, str]]) -> None:
    """Print a title, and rows of name, number, formula."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(min_width=20, no_wrap=True)
    table.add_column(justify="right", min_width=16, no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(Text(f"\n{title}", style="bold"))
    console.print(table)


def format_bytes(size: float) -> str:
    """Format a size in decimal units, as disks are sold."""
    return f"{format_compact(size)}B"


def format_epochs(epochs: float) -> str:
    return pluralise(int(epochs), "epoch") if epochs == int(epochs) else f"{epochs:g} epochs"


def format_days(seconds: float) -> str:
    """Format the duration of a training in days, hours or minutes.

    >>> format_days(86_400 * 3), format_days(7200 * 3), format_days(30)
    ('3.0 days', '6.0 hours', '1 minute')
    """
    if seconds >= 86_400:
        return f"{seconds / 86_400:,.1f} days"
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return pluralise(max(1, round(seconds / 60)), "minute")


def format_long_duration(seconds: float) -> str:
    """Format a duration of seconds to days.

    >>> format_long_duration(90), format_long_duration(200_000)
    ('1 min 30 s', '2.3 days')
    """
    return format_days(seconds) if seconds >= 86_400 else format_duration(seconds)


def make_table(first: str, *numbers: str) -> Table:
    """Make a plain table: a column of names, then columns of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def make_number_table(*names: str) -> Table:
    """Make a plain table whose columns are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right")
    return table


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are: unwrapped, so that commands and paths can be copied."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
