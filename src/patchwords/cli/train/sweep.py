"""`patchwords sweep DATA --weights SRC`: which learning rate, by the paper's protocol."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from patchwords.cli.options import TrainCommand
from patchwords.evaluation.sweeps.config import SweepConfig

if TYPE_CHECKING:
    from rich.console import Console

    from patchwords.evaluation.sweeps.sweep import SweepResult


@dataclass(frozen=True)
class SweepCommand(TrainCommand, SweepConfig):
    """Choose the learning rate on a dev split, as the paper does, then train on all images.

    For each rate a model is trained on the training images except a dev split (10 % of small data,
    2 % of up to 500,000 images, 1 % of more; or DATA's own validation split), and evaluated on that
    split. The best rate is then used to train on all training images, and only that last model is
    evaluated on the test images, once.

    All settings of `patchwords finetune` except --lr and --validation apply to every run. The
    output folder gets lr-RATE/ and final/, which are run folders (predict, evaluate and report take
    final/), sweep.json, results.json, results.csv, and accuracy over learning rate as sweep.png and
    .svg. After an interruption the same command with --resume continues exactly.

    Example: patchwords sweep photos/ --weights runs/pretrained --lrs 0.003 0.01 0.03 --seeds 3
    """


def parse_sweep(words: Sequence[str]) -> SweepCommand:
    from patchwords.cli.config_files import parse_with_files

    return parse_with_files(SweepCommand, words, "patchwords sweep")


def run_sweep(config: SweepCommand) -> int:
    """Sweep, write the table and the figure, say what came of it."""
    config.check()
    from rich.console import Console

    from patchwords.cli.options import write_results
    from patchwords.distributed import is_main_process
    from patchwords.evaluation.sweeps.sweep import sweep_learning_rates
    from patchwords.report.run_insight import write_report_with_insight
    from patchwords.training.logs.display import Display

    console = Console(stderr=config.json, quiet=not is_main_process())
    report = partial(write_report_with_insight, device=config.machine.device)
    outcome = sweep_learning_rates(config, Display(console), report)
    if not is_main_process():  # of several processes, the main one writes and speaks
        return 0
    found = sweep_results(outcome)
    write_results(outcome.folder, found, sweep_rows(outcome), draw_sweep(outcome))
    if config.json:
        print(jsonlib.dumps(found))
    else:
        print_sweep(outcome, console)
    return 0


def sweep_results(outcome: SweepResult) -> dict[str, Any]:
    """results.json, and what --json prints."""
    return {
        "folder": str(outcome.folder),
        "cells": [asdict(cell) for cell in outcome.cells],
        "lr": outcome.chosen.lr,
        "remarks": outcome.remarks,
        "test": asdict(outcome.spread),
        "final": [
            {
                "seed": final.seed,
                "run": str(outcome.folder / final.folder),
                **{name: final.evaluation[name] for name in ("accuracy", "loss", "images")},
            }
            for final in outcome.finals
        ],
    }


def sweep_rows(outcome: SweepResult) -> list[dict[str, Any]]:
    """results.csv: a row for each run."""
    table: list[dict[str, Any]] = []
    for cell in outcome.cells:
        low, high = (None, None) if cell.accuracy is None else cell.interval
        table.append(
            {
                "run": cell.folder,
                "lr": cell.lr,
                "seed": None,
                "split": "dev",
                "accuracy": cell.accuracy,
                "low": low,
                "high": high,
                "loss": cell.loss,
                "images": cell.images,
                "chosen": cell is outcome.chosen,
                "note": cell.why,
            }
        )
    for final in outcome.finals:
        evaluation = final.evaluation
        table.append(
            {
                "run": final.folder,
                "lr": outcome.chosen.lr,
                "seed": final.seed,
                "split": evaluation["split"],
                "accuracy": final.accuracy,
                "low": evaluation["accuracy"]["low"],
                "high": evaluation["accuracy"]["high"],
                "loss": evaluation["loss"],
                "images": evaluation["images"],
            }
        )
    return table


def draw_sweep(outcome: SweepResult) -> dict[str, bytes]:
    """Dev accuracy over the learning rate, which is on a logarithmic axis."""
    from patchwords.report.figures.plots import Curve, Panel, draw_panels

    alive = [cell for cell in outcome.cells if cell.accuracy is not None]
    low, high = zip(*(cell.interval for cell in alive), strict=True)
    rates = [cell.lr for cell in alive]
    accuracy = [cell.accuracy for cell in alive if cell.accuracy is not None]
    lost = [f"{cell.lr:g}" for cell in outcome.cells if cell.accuracy is None]
    caption = (
        f"Accuracy on {alive[0].images:,} dev images, with 95 % intervals (Wilson); "
        f"{outcome.chosen.lr:g} is chosen. {format_sweep_accuracy(outcome)}."
        + (f" Training diverged at {', '.join(lost)}." if lost else "")
    )
    curve = Curve("dev", rates, accuracy, low, high)
    panel = Panel(
        "Learning rate", "peak learning rate", "accuracy", [curve], log_x=True, x_ticks=rates
    )
    return draw_panels([panel], caption, "sweep")


def format_sweep_accuracy(outcome: SweepResult) -> str:
    """The test accuracy, with the spread over the seeds where there are several."""
    first, over = outcome.finals[0].evaluation, outcome.spread
    if over.std is None:
        low, high = first["accuracy"]["low"], first["accuracy"]["high"]
        how = f"95 % interval {low:.1%} to {high:.1%}"
    else:
        how = f"standard deviation {over.std:.2%} over {over.n} seeds"
    return f"Test accuracy {over.mean:.1%} on {first['images']:,} images ({how})"


def print_sweep(outcome: SweepResult, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("learning rate", "dev accuracy", "95 % interval", "loss", ""):
        table.add_column(name, justify="right" if name else "left")
    for cell in outcome.cells:
        if cell.accuracy is None:
            table.add_row(f"{cell.lr:g}", "-", "-", "-", "diverged")
            continue
        low, high = cell.interval
        chosen = "chosen" if cell is outcome.chosen else ""
        numbers = f"{cell.accuracy:.1%}", f"{low:.1%} to {high:.1%}", f"{cell.loss:.3f}"
        table.add_row(f"{cell.lr:g}", *numbers, chosen)
    console.print(table)
    for line in (
        *outcome.remarks[1:],
        format_sweep_accuracy(outcome),
        f"run:     {outcome.folder / outcome.finals[0].folder}",
        f"table:   {outcome.folder / 'results.csv'}, sweep.png",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
