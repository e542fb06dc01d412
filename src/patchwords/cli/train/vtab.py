"""`patchwords vtab ROOT --weights SRC`: transfer to the 19 tasks of VTAB-1k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from patchwords.cli.options import TrainCommand
from patchwords.evaluation.sweeps.config import VtabConfig

if TYPE_CHECKING:
    from rich.console import Console

    from patchwords.evaluation.sweeps.vtab import VtabResult, VtabScore
    from patchwords.evaluation.sweeps.vtab_tasks import VtabGroup


@dataclass(frozen=True)
class VtabCommand(TrainCommand, VtabConfig):
    """Fine-tune a pretrained model on the tasks of VTAB-1k, next to the paper's numbers.

    ROOT has a folder for each task, such as ROOT/caltech101/ with its train/, val/ and test/
    folders: 1,000 training images, all used for training, and the whole test set. Tasks without a
    folder are named and left out; docs/sweeps.md lists the tasks and how to make their folders.

    The protocol is the paper's for all tasks: SGD, 2,500 steps of 512 images at a learning rate of
    0.01, 384x384 pixels. Settings that you change are listed with the results. The output folder
    gets a run folder for each task, results.json, results.csv, vtab.png and vtab.svg. After an
    interruption the same command with --resume continues exactly.

    Example: patchwords vtab vtab/ --weights google/vit-base-patch16-224-in21k --output runs/vtab
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ROOT")] = ""
    """folder with a folder of images for each task"""


def parse_vtab(words: Sequence[str]) -> VtabCommand:
    from patchwords.cli.config_files import parse_with_files

    return parse_with_files(VtabCommand, words, "patchwords vtab")


def run_vtab(config: VtabCommand) -> int:
    """Train and evaluate on every task, write the table and the figure, print the result."""
    from patchwords.cli.train.sweep import run_series
    from patchwords.evaluation.sweeps.vtab import evaluate_vtab

    return run_series(config, evaluate_vtab, vtab_results, vtab_rows, draw_vtab, print_vtab)


def vtab_results(outcome: VtabResult) -> dict[str, Any]:
    """Make results.json, which --json prints, too."""
    from patchwords.evaluation.sweeps.vtab_tasks import TABLE_9_MODELS

    def means(group: VtabGroup | None) -> dict[str, Any]:
        return {
            "accuracy": outcome.mean(group),
            "tasks": len(outcome.chosen(group)),
            "paper": {model: outcome.published(i, group) for i, model in enumerate(TABLE_9_MODELS)},
        }

    return {
        "folder": str(outcome.folder),
        "mean": means(None),
        "groups": {group: means(group) for group in outcome.groups},
        "tasks": [
            {
                **{name: value for name, value in row.items() if name not in TABLE_9_MODELS},
                "paper": {model: row[model] for model in TABLE_9_MODELS},
                "differences": score.differences,
            }
            for row, score in zip(vtab_rows(outcome), outcome.scores, strict=True)
        ],
        "missing": outcome.missing,
        "departures": outcome.departures,
    }


def vtab_rows(outcome: VtabResult) -> list[dict[str, Any]]:
    """Make the rows of results.csv: one per task, with the paper's accuracies as shares."""
    from patchwords.evaluation.sweeps.vtab_tasks import TABLE_9_MODELS

    def published(score: VtabScore) -> dict[str, float]:
        return {
            model: per_cent / 100
            for model, per_cent in zip(TABLE_9_MODELS, score.task.table_9, strict=True)
        }

    return [
        {
            "task": score.task.name,
            "group": score.task.group,
            "accuracy": score.accuracy,
            "low": score.evaluation["accuracy"]["low"],
            "high": score.evaluation["accuracy"]["high"],
            "images": score.evaluation["images"],
            "train": score.counts.train,
            "classes": score.counts.classes,
            "run": score.folder,
            **published(score),
        }
        for score in outcome.scores
    ]


def draw_vtab(outcome: VtabResult) -> dict[str, bytes]:
    """Draw a line for each task: our accuracy with its interval, and the paper's."""
    from patchwords.evaluation.sweeps.vtab_tasks import TABLE_9_MODELS
    from patchwords.report.figures.plots import DotSeries, draw_dot_plot

    table = vtab_rows(outcome)
    ours = DotSeries(
        "this model", *([row[name] for row in table] for name in ("accuracy", "low", "high"))
    )
    theirs = [
        DotSeries(f"ViT-{model} (paper)", [row[model] for row in table]) for model in TABLE_9_MODELS
    ]
    caption = " ".join([f"{format_vtab_mean(outcome)}.", *list_vtab_caveats(outcome)])
    names = [row["task"] for row in table]
    return draw_dot_plot(names, [ours, *theirs], "accuracy", caption, "vtab")


def format_vtab_mean(outcome: VtabResult) -> str:
    """Format the mean accuracy and the number of tasks."""
    done = len(outcome.scores)
    which = "the 19 tasks" if not outcome.missing and done == 19 else f"{done} of the 19 tasks"
    return f"VTAB-1k: mean accuracy {outcome.mean():.1%} over {which}"


def list_vtab_caveats(outcome: VtabResult) -> list[str]:
    """List why the numbers may not be comparable with the paper's."""
    lines = []
    if outcome.departures:
        lines.append(f"Not the paper's protocol: {'; '.join(outcome.departures)}.")
    for score in outcome.scores:
        if score.differences:
            lines.append(f"{score.task.name} is not VTAB-1k's: {', '.join(score.differences)}.")
    if outcome.missing:
        lines.append(f"No data: {', '.join(outcome.missing)}.")
    return lines


def print_vtab(outcome: VtabResult, console: Console) -> None:
    from rich.table import Table

    from patchwords.evaluation.sweeps.vtab_tasks import TABLE_9_MODELS

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("task", "images", "accuracy", "95 %", *TABLE_9_MODELS):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    for group in outcome.groups:
        for score in outcome.chosen(group):
            accuracy = score.evaluation["accuracy"]
            table.add_row(
                score.task.name,
                f"{score.evaluation['images']:,}",
                f"{accuracy['value']:.1%}",
                f"{100 * accuracy['low']:.0f}-{accuracy['high']:.0%}",
                *(f"{value:.1f}%" for value in score.task.table_9),
            )
        add_mean_row(table, outcome, group)
    add_mean_row(table, outcome, None)
    console.print(table)
    for line in (
        format_vtab_mean(outcome),
        "next to it Table 9 of the paper, with means over the same tasks",
        *list_vtab_caveats(outcome),
        f"table:   {outcome.folder / 'results.csv'}, vtab.png",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def add_mean_row(table: Any, outcome: VtabResult, group: VtabGroup | None) -> None:
    """Add the mean of a group of tasks or, for None, of all tasks."""
    from patchwords.evaluation.sweeps.vtab_tasks import TABLE_9_MODELS

    count = len(outcome.chosen(group))
    name = f"{group or 'all'}: mean of {count}"
    paper = (f"{outcome.published(i, group):.1%}" for i in range(len(TABLE_9_MODELS)))
    table.add_row(name, "", f"{outcome.mean(group):.1%}", "", *paper, style="bold")
