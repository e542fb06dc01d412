"""Progress of a command on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from patchwords.distributed import is_main_process

ShowImages = Callable[[int, int], None]  # images done, images in all
ShowNamedImages = Callable[[str, int, int], None]  # the same, for one measurement after another
SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def show_progress(title: str) -> Iterator[ShowImages]:
    """Show how many images are done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield print_progress_lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(Text(replace_unprintable(title)).markup, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_progress_lines(title: str) -> ShowImages:
    """Print a line now and then, for logs."""
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() >= last + SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            line = f"{replace_unprintable(title)}: {done:,} of {total:,} images"
            print(line, file=sys.stderr, flush=True)

    return show


@contextmanager
def show_progress_in_turn() -> Iterator[ShowNamedImages]:
    """Show the progress of one measurement after another, in the main process."""
    bars: dict[str, ShowImages] = {}
    with ExitStack() as stack:

        def show(title: str, done: int, total: int) -> None:
            if not is_main_process():
                return
            if title not in bars:
                stack.close()  # the previous measurement's
                bars.clear()
                bars[title] = stack.enter_context(show_progress(title))
            bars[title](done, total)

        yield show


def replace_unprintable(text: str) -> str:
    """Make a file name safe to print on one line; it may hold any bytes."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
