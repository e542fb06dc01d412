"""`patchwords vtab ROOT --weights SRC`: transfer to the 19 tasks of VTAB-1k."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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
    """Train and judge every task, write the table and the figure, say what came of it."""
    config.check()
    from rich.console import Console

    from patchwords.cli.options import write_results
    from patchwords.distributed import is_main_process
    from patchwords.evaluation.sweeps.vtab import evaluate_vtab
    from patchwords.report.run_insight import write_report_with_insight
    from patchwords.training.logs.display import Display

    console = Console(stderr=config.json, quiet=not is_main_process())
    report = partial(write_report_with_insight, device=config.machine.device)
    outcome = evaluate_vtab(config, Display(console), report)
    if not is_main_process():  # of several processes, the main one writes and speaks
        return 0
    found = vtab_results(outcome)
    write_results(outcome.folder, found, vtab_rows(outcome), draw_vtab(outcome))
    if config.json:
        print(jsonlib.dumps(found))
    else:
        print_vtab(outcome, console)
    return 0


def vtab_results(outcome: VtabResult) -> dict[str, Any]:
    """results.json, and what --json prints."""
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
    """results.csv: a row for each task, the paper's accuracies as shares, too."""
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
    """A line for each task: ours, with its interval, and the paper's."""
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
    """The mean, and of how many tasks."""
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
            found = score.evaluation["accuracy"]
            table.add_row(
                score.task.name,
                f"{score.evaluation['images']:,}",
                f"{found['value']:.1%}",
                f"{100 * found['low']:.0f}-{found['high']:.0%}",
                *(f"{value:.1f}%" for value in score.task.table_9),
            )
        add_mean_row(table, outcome, group)
    add_mean_row(table, outcome, None)
    console.print(table)
    for line in (
        format_vtab_mean(outcome),
        "beside it Table 9 of the paper; its means here are over the same tasks",
        *list_vtab_caveats(outcome),
        f"table:   {outcome.folder / 'results.csv'}, vtab.png",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def add_mean_row(table: Any, outcome: VtabResult, group: VtabGroup | None) -> None:
    """The line of a group, or, with None, of all tasks."""
    from patchwords.evaluation.sweeps.vtab_tasks import TABLE_9_MODELS

    count = len(outcome.chosen(group))
    name = f"{group or 'all'}: mean of {count}"
    paper = (f"{outcome.published(i, group):.1%}" for i in range(len(TABLE_9_MODELS)))
    table.add_row(name, "", f"{outcome.mean(group):.1%}", "", *paper, style="bold")
