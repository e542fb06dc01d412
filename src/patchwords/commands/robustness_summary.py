"""The results of `patchwords robustness` as tables on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from patchwords.report.robustness import robustness_curve_name

if TYPE_CHECKING:
    from patchwords.evaluate.robustness.disturbance import Perturbation


def print_robustness(
    disturbances: Sequence[Perturbation],
    points: Sequence[Mapping[str, Any]],
    lines: Sequence[str],
    output: Path | None,
) -> None:
    """A table for each disturbance, and what was measured on."""
    console = Console()
    for disturbance in disturbances:
        mine = [point for point in points if point["disturbance"] == disturbance.name]
        console.print(f"\n{disturbance.title}", style="bold", markup=False, highlight=False)
        console.print(make_robustness_table(disturbance.x_label, mine))
    written = [] if output is None else [f"results and figures: {output}"]
    for line in ("", *lines, *written):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_robustness_table(x_label: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each level, a column for each curve: accuracy and its deviation over seeds, in %"""
    curves = list(dict.fromkeys(robustness_curve_name(point) for point in points))
    cells = {
        (point["level"], robustness_curve_name(point)): format_mean_accuracy(point)
        for point in points
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (x_label, *curves):
        table.add_column(name, justify="right", overflow="fold")
    for level in sorted({point["level"] for point in points}):
        # a level that one model's images allow may be too fine for another's
        table.add_row(f"{level:g}", *(cells.get((level, curve), "-") for curve in curves))
    return table


def format_mean_accuracy(point: Mapping[str, Any]) -> str:
    mean = f"{100 * point['mean']:.1f}"
    return mean if point["std"] is None else f"{mean} ± {100 * point['std']:.1f}"
