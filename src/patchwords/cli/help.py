"""The text of `patchwords --help` and of `patchwords VERB --help`."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchwords.cli.flags import REQUIRED, Flag, list_sections

MAX_WIDTH = 100  # characters of a line
FLAG_WIDTH = 26  # of the left column


def format_help(command: type, program: str) -> str:
    """What a command does, then its flags by section."""
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    sections = list_sections(command)
    arguments = [flag for _, flags in sections for flag in flags if flag.positional]
    usage = " ".join(
        flag.metavar if flag.default in (REQUIRED, "") else f"[{flag.metavar}]"
        for flag in arguments
    )
    parts = [f"usage: {program} {usage} [OPTIONS]".replace("  ", " ")]
    parts += format_paragraphs(inspect.cleandoc(command.__doc__ or ""), width)
    if arguments:
        parts.append(format_section("Arguments", arguments, width))
    for number, (title, flags) in enumerate(sections):
        rows = [flag for flag in flags if not flag.positional]
        text = format_section(title, rows, width)
        if number == 0:
            text += "\n" + format_row("-h, --help", "show this help", width)
            text += "\n" + format_row("--debug", "show the traceback of an error", width)
        parts.append(text)
    return "\n\n".join(parts)


def format_paragraphs(text: str, width: int) -> Iterator[str]:
    """The paragraphs of a docstring; examples keep their line."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("Example: "):
            yield paragraph
        else:
            yield textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False)


def format_section(title: str, flags: list[Flag], width: int) -> str:
    rows = [format_row(format_usage(flag), format_text(flag), width) for flag in flags]
    return "\n".join([f"{title}:", *rows])


def format_row(left: str, right: str, width: int) -> str:
    """A flag in the left column, what it does in the right one."""
    indent = " " * (FLAG_WIDTH + 2)
    lines = textwrap.wrap(right, max(width - len(indent), 20), break_on_hyphens=False)
    if len(left) > FLAG_WIDTH - 2:
        return "\n".join([f"  {left}", *(indent + line for line in lines)])
    first = f"  {left:<{FLAG_WIDTH}}" + (lines[0] if lines else "")
    return "\n".join([first.rstrip(), *(indent + line for line in lines[1:])])


def format_usage(flag: Flag) -> str:
    """A flag and its value: `--lr FLOAT`, `--flip, --no-flip`."""
    if flag.positional:
        return flag.metavar
    if flag.kind is bool:
        return f"{flag.name}, --no-{flag.name[2:]}" if flag.default is True else flag.name
    return f"{flag.name} {flag.metavar}"


def format_text(flag: Flag) -> str:
    """What a flag does, and its default."""
    if flag.default is REQUIRED:
        return flag.text if flag.positional else f"{flag.text} (required)"
    default = None if "default:" in flag.text else format_default(flag)
    return flag.text if default is None else f"{flag.text} (default: {default})"


def format_default(flag: Flag) -> str | None:
    """The default as the user would write it; None where the text says enough."""
    value: Any = flag.default
    if value is None:
        return flag.unset
    if isinstance(value, bool):
        return "on" if value else None
    if isinstance(value, tuple):
        return " ".join(map(format_number, value)) or None
    return format_number(value) or None


def format_number(value: float | str | Path) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
