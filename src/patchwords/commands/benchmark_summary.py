"""What a machine does with a model, on a terminal; and how far the measuring is."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from patchwords.commands.plan_summary import WIDTH, bytes_of, days, plural_epochs, section
from patchwords.duration import duration
from patchwords.measure.advice import pace
from patchwords.report.words import NOTHING, big, count, plural

GIB = 2**30
BUSY = 0.5  # programs that ran just before: from here on, speeds are too low


class Steps:
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

    def __enter__(self) -> Steps:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.stop()


def show(results: dict[str, Any], folder: Path | None) -> None:
    """Print the table of `commands.benchmark.summarise`."""
    console = Console(width=WIDTH, highlight=False)
    height, width = results["image_size"]
    title = f"{results['model']} at {height}x{width} on {results['machine']['name']}"
    console.print(Text(title, style="bold"))
    section(console, "The machine", machine(results["machine"]))
    for name, what in {
        "inference": "Inference, as patchwords predict asks",
        "training": f"Training step, {results['optimizer']}",
    }.items():
        console.print(Text(f"\n{what}", style="bold"))
        console.print(speeds(results[name]))
    section(console, "Input", reading(results))
    section(console, "Where the time of a training goes", phases(results["together"]))
    section(console, "The step by kind of operation", shares(results["operations"]))
    section(console, "Advice for predict", advice(results["prediction"]))
    section(console, "Advice for training", advice(results["advice"]))
    say(console, f"\n  {results['command']}")
    if results["run"] is not None:
        section(console, "Your run", run(results))
        say(console, f"\n  {results['run']['plan']}")
    if folder is not None:
        say(console, f"\nresults: {folder}")


def say(console: Console, line: str) -> None:
    """A line that may be copied whole."""
    console.print(line, markup=False, soft_wrap=True)


def machine(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    used = f"{plural(found['threads'], 'thread')} on {plural(found['cores'], 'core')}"
    rows = [
        (
            f"matrix peak, {precision}",
            f"{big(peak)}FLOP/s",
            used if found["device"] == "cpu" else "",
        )
        for precision, peak in found["peak_flops_per_second"].items()
    ]
    rows.append(("memory", bytes_of(found["copied_bytes_per_second"]) + "/s", "read and written"))
    rows.append(("free memory", f"{found['free_bytes'] / GIB:.1f} GiB", "before this"))
    if found["load"] is not None and found["load"] >= BUSY:
        why = "other programs ran just before: if they still do, all speeds are too low"
        rows.append(("load", f"{found['load']:.1f}", why))
    return rows


def speeds(rows: list[dict[str, Any]]) -> Table:
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
            count(row["batch"]),
            NOTHING if row["skipped"] else pace(row["images_per_second"]),
            NOTHING if used is None else f"{used:.0%}" if used >= 0.1 else f"{used:.1%}",
            NOTHING if held is None else f"{held / GIB:.2f} GiB",
            row["skipped"] or "",
        )
    return table


def reading(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    named = "made JPEGs of 500 x 375 pixels" if results["data"] is None else results["data"]
    what = f"{named}, {bytes_of(results['image_bytes'])} each"
    return [
        (
            "between the steps" if row["workers"] == 0 else plural(row["workers"], "worker"),
            f"{pace(row['images_per_second'])} images/s",
            what if place == 0 else "",
        )
        for place, row in enumerate(results["input"])
    ]


def phases(together: dict[str, Any]) -> list[tuple[str, str, str]]:
    how = (
        f"{together['precision']}, {together['batch']} at a time, "
        f"{plural(together['workers'], 'worker')}; {plural(together['steps'], 'step')}"
    )
    rows = [("training and input", f"{pace(together['images_per_second'])} images/s", how)]
    return rows + shares(together["phases"])


def shares(table: dict[str, float]) -> list[tuple[str, str, str]]:
    return [(name, f"{share:.1%}", "") for name, share in table.items()]


def advice(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["name"], str(row["value"]), row["why"]) for row in rows]


def run(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """How long, and from which numbers."""
    found = results["run"]
    seen = f"{count(found['images'])} images x {plural_epochs(found['epochs'])}"
    speed = f"{pace(found['images_per_second'])} images/s, training and input together"
    steps = f"{count(found['steps'])} steps of {count(found['batch'])}"
    return [
        ("training", lasting(found["seconds"]), f"{seen} / {speed}"),
        ("steps", steps, "evaluation and checkpoints are not counted"),
    ]


def lasting(seconds: float) -> str:
    """
    >>> lasting(90), lasting(200_000)
    ('1 min 30 s', '2.3 days')
    """
    return days(seconds) if seconds >= 86_400 else duration(seconds)
