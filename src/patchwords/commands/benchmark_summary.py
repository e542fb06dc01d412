"""What a machine does with a model, on a terminal; and how far the measuring is."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from patchwords.commands.plan_summary import (
    CONSOLE_WIDTH,
    format_bytes,
    format_days,
    format_epochs,
    print_section,
)
from patchwords.duration import format_duration
from patchwords.measure.advice import format_throughput
from patchwords.report.words import UNKNOWN_VALUE, format_compact, format_count, pluralise

GIB = 2**30
BUSY_LOAD = 0.5  # programs that ran just before: from here on, speeds are too low


class BenchmarkProgress:
    """On stderr: a bar on a terminal, a line for each step elsewhere."""

    def __init__(self, total: int) -> None:
        self.console = Console(stderr=True)
        self.total, self.done = total, 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=total)

    def tell(self, what: str) -> None:
        """What is measured next."""
        if not self.console.is_terminal:
            line = f"{self.done + 1}/{self.total} {what}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self.bar.update(self.task, completed=self.done, description=what)
        self.done += 1

    def __enter__(self) -> BenchmarkProgress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.stop()


def print_benchmark(results: dict[str, Any], folder: Path | None) -> None:
    """Print the table of `commands.benchmark.summarise`."""
    console = Console(width=CONSOLE_WIDTH, highlight=False)
    height, width = results["image_size"]
    title = f"{results['model']} at {height}x{width} on {results['machine']['name']}"
    console.print(Text(title, style="bold"))
    print_section(console, "The machine", machine_rows(results["machine"]))
    for name, what in {
        "inference": "Inference, as patchwords predict asks",
        "training": f"Training step, {results['optimizer']}",
    }.items():
        console.print(Text(f"\n{what}", style="bold"))
        console.print(make_speed_table(results[name]))
    print_section(console, "Input", input_rows(results))
    print_section(console, "Where the time of a training goes", phase_rows(results["together"]))
    print_section(console, "The step by kind of operation", share_rows(results["operations"]))
    print_section(console, "Advice for predict", advice_rows(results["prediction"]))
    print_section(console, "Advice for training", advice_rows(results["advice"]))
    print_unwrapped(console, f"\n  {results['command']}")
    if results["run"] is not None:
        print_section(console, "Your run", training_time_rows(results))
        print_unwrapped(console, f"\n  {results['run']['plan']}")
    if folder is not None:
        print_unwrapped(console, f"\nresults: {folder}")


def print_unwrapped(console: Console, line: str) -> None:
    """A line that may be copied whole."""
    console.print(line, markup=False, soft_wrap=True)


def machine_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    used = f"{pluralise(found['threads'], 'thread')} on {pluralise(found['cores'], 'core')}"
    rows = [
        (
            f"matrix peak, {precision}",
            f"{format_compact(peak)}FLOP/s",
            used if found["device"] == "cpu" else "",
        )
        for precision, peak in found["peak_flops_per_second"].items()
    ]
    rows.append(
        ("memory", format_bytes(found["copied_bytes_per_second"]) + "/s", "read and written")
    )
    rows.append(("free memory", f"{found['free_bytes'] / GIB:.1f} GiB", "before this"))
    if found["load"] is not None and found["load"] >= BUSY_LOAD:
        why = "other programs ran just before: if they still do, all speeds are too low"
        rows.append(("load", f"{found['load']:.1f}", why))
    return rows


def make_speed_table(rows: list[dict[str, Any]]) -> Table:
    """A row for each precision and number of images at a time."""
    table = Table(box=None, pad_edge=False)
    table.add_column("precision", min_width=20, no_wrap=True)
    for name in ("at a time", "images/s", "of the peak", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", style="dim")
    for row in rows:
        used, held = row["share_of_peak"], row["memory_bytes"]
        table.add_row(
            row["precision"],
            format_count(row["batch"]),
            UNKNOWN_VALUE if row["skipped"] else format_throughput(row["images_per_second"]),
            UNKNOWN_VALUE if used is None else f"{used:.0%}" if used >= 0.1 else f"{used:.1%}",
            UNKNOWN_VALUE if held is None else f"{held / GIB:.2f} GiB",
            row["skipped"] or "",
        )
    return table


def input_rows(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    named = "made JPEGs of 500 x 375 pixels" if results["data"] is None else results["data"]
    what = f"{named}, {format_bytes(results['image_bytes'])} each"
    return [
        (
            "between the steps" if row["workers"] == 0 else pluralise(row["workers"], "worker"),
            f"{format_throughput(row['images_per_second'])} images/s",
            what if place == 0 else "",
        )
        for place, row in enumerate(results["input"])
    ]


def phase_rows(together: dict[str, Any]) -> list[tuple[str, str, str]]:
    how = (
        f"{together['precision']}, {together['batch']} at a time, "
        f"{pluralise(together['workers'], 'worker')}; {pluralise(together['steps'], 'step')}"
    )
    rows = [
        ("training and input", f"{format_throughput(together['images_per_second'])} images/s", how)
    ]
    return rows + share_rows(together["phases"])


def share_rows(table: dict[str, float]) -> list[tuple[str, str, str]]:
    return [(name, f"{share:.1%}", "") for name, share in table.items()]


def advice_rows(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["name"], str(row["value"]), row["why"]) for row in rows]


def training_time_rows(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """How long, and from which numbers."""
    found = results["run"]
    seen = f"{format_count(found['images'])} images x {format_epochs(found['epochs'])}"
    speed = f"{format_throughput(found['images_per_second'])} images/s, training and input together"
    steps = f"{format_count(found['steps'])} steps of {format_count(found['batch'])}"
    return [
        ("training", format_long_duration(found["seconds"]), f"{seen} / {speed}"),
        ("steps", steps, "evaluation and checkpoints are not counted"),
    ]


def format_long_duration(seconds: float) -> str:
    """
    >>> format_long_duration(90), format_long_duration(200_000)
    ('1 min 30 s', '2.3 days')
    """
    return format_days(seconds) if seconds >= 86_400 else format_duration(seconds)
