"""The doctor's findings on a terminal: short enough to be read, with the first examples."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from patchwords.data.examples import DatasetSplits
from patchwords.data.findings import CHECKS, DoctorReport, Finding, Severity
from patchwords.data.survey import SurveyProgress as Report

SEVERITY_TITLES: dict[Severity, str] = {
    "error": "Errors: put them right before training",
    "warning": "Warnings: look at them",
    "note": "Notes: good to know",
}
SEVERITY_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
MAX_EXAMPLES = 3  # findings of a kind that are shown
MAX_EXAMPLE_PATHS = 4  # images of a finding that are shown
MAX_LARGEST_CLASSES, MAX_SMALLEST_CLASSES = (
    5,
    10,
)  # classes that are shown where there are more than both together
BAR_WIDTH = 24  # characters for the largest class
PROGRESS_SECONDS = 5.0  # seconds between two plain lines of progress


@contextmanager
def show_progress(title: str) -> Iterator[Report]:
    """A progress bar on stderr, or plain lines where that is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(Text(replace_unprintable(title)).markup, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_lines(title: str) -> Report:
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() >= last + PROGRESS_SECONDS:
            last = time.monotonic()
            print(
                f"{replace_unprintable(title)}: {done:,} of {total:,} images",
                file=sys.stderr,
                flush=True,
            )

    return tell


def print_findings(
    data: DatasetSplits, findings: DoctorReport, exit_code: int, csv: Path | None
) -> None:
    """Print the summary."""
    console = Console(highlight=False)
    console.print(Text(_headline(data, findings), style="bold"), soft_wrap=True)
    for line in (_shape(findings), *data.notes):
        if line:
            console.print(Text(replace_unprintable(line), style="dim"), soft_wrap=True)
    if data.classes:
        console.print()
        console.print(_classes(data, findings, "#" if console.options.ascii_only else "━"))
    for severity, title in SEVERITY_TITLES.items():
        if findings.of_severity(severity):
            console.print()
            console.print(Text(title, style=SEVERITY_STYLES[severity]))
        for kind in CHECKS:
            found = findings.of_kind(kind)
            if found and CHECKS[kind].severity == severity:
                _show_kind(console, kind, found)
    console.print()
    console.print(_verdict(findings, exit_code))
    if csv is not None:
        console.print(
            Text(f"Every image concerned is listed in {replace_unprintable(str(csv))}"),
            soft_wrap=True,
        )
    elif findings.findings:
        console.print(Text("Add --csv findings.csv for a list of every image concerned", "dim"))


def replace_unprintable(text: str) -> str:
    """Safe to print on one line: file names may hold anything, bytes that are no text too."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def format_noun_count(number: int, noun: str) -> str:
    """1 image, 2,000 images, 3 classes."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def _headline(data: DatasetSplits, findings: DoctorReport) -> str:
    splits = [f"{name} {sum(counts):,}" for name, counts in findings.counts.items()]
    told = f" ({', '.join(splits)})" if len(splits) > 1 else ""
    classes = (
        f" of {format_noun_count(len(data.classes), 'class')}" if data.classes else ", no labels"
    )
    return replace_unprintable(
        f"{data.source}: {format_noun_count(findings.images, 'image')}{classes}{told}"
    )


def _shape(findings: DoctorReport) -> str:
    """Formats and sizes, on one line."""
    parts = [f"{name} {number:,}" for name, number in findings.formats.items()]
    for side, pixels in findings.sizes.items():
        if pixels:
            least, _, median, _, most = pixels
            same = least == most
            parts.append(
                f"{side} {least}" if same else f"{side} {least} to {most}, median {median}"
            )
    return " · ".join(parts)


def _classes(data: DatasetSplits, findings: DoctorReport, stroke: str) -> Table:
    """Images of each class and split, with a bar; of many classes the largest and smallest."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class", overflow="fold")
    for split in findings.counts:
        table.add_column("images" if len(findings.counts) == 1 else split, justify="right")
    table.add_column("", no_wrap=True)
    counts = np.array(list(findings.counts.values()))  # [splits, classes]
    total = counts.sum(0)
    rows: list[int | None] = list(range(len(total)))
    if len(total) > MAX_LARGEST_CLASSES + MAX_SMALLEST_CLASSES:
        ranked = np.argsort(-total, kind="stable").tolist()
        rows = [*ranked[:MAX_LARGEST_CLASSES], None, *ranked[-MAX_SMALLEST_CLASSES:]]
    for label in rows:
        if label is None:
            more = len(total) - MAX_LARGEST_CLASSES - MAX_SMALLEST_CLASSES
            table.add_row(Text(f"... {more:,} more ...", "dim"))
            continue
        bar = stroke * int(np.ceil(BAR_WIDTH * total[label] / max(total.max(), 1)))
        numbers = [f"{number:,}" for number in counts[:, label]]
        table.add_row(Text(replace_unprintable(data.classes[label])), *numbers, Text(bar, "blue"))
    return table


def _show_kind(console: Console, kind: str, found: tuple[Finding, ...]) -> None:
    severity, meaning = CHECKS[kind]
    title = (f"{len(found):>6,} {kind}", SEVERITY_STYLES[severity])
    console.print(Text.assemble(title, f"  {meaning}"), soft_wrap=True)
    for finding in found[:MAX_EXAMPLES]:
        console.print(
            Text(replace_unprintable(f"       {_example(finding)}"), "dim"), soft_wrap=True
        )
    if len(found) > MAX_EXAMPLES:
        console.print(Text(f"       ... and {len(found) - MAX_EXAMPLES:,} more", "dim"))


def _example(finding: Finding) -> str:
    names = finding.keys or tuple(place.label for place in finding.places)
    named = ", ".join(names[:MAX_EXAMPLE_PATHS])
    if len(names) > MAX_EXAMPLE_PATHS:
        named += f" and {len(names) - MAX_EXAMPLE_PATHS:,} more"
    return f"{named}: {finding.detail}" if finding.detail else named


def _verdict(findings: DoctorReport, exit_code: int) -> Text:
    """The last line: what was found and whether training can begin."""
    parts: list[str | tuple[str, str]] = []
    for severity in SEVERITY_TITLES:
        number = len(findings.of_severity(severity))
        parts += [
            (format_noun_count(number, severity), SEVERITY_STYLES[severity] if number else "dim"),
            ", ",
        ]
    advice = "put right the errors before training" if exit_code else "ready to train"
    if exit_code and not findings.of_severity("error"):
        advice = "--strict: put right the warnings"
    return Text.assemble(*parts[:-1], f" in {findings.seconds:.1f} s: {advice}")
