"""`patchwords sweep DATA --weights SRC`: the learning rate, by the paper's protocol."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patchwords.cli.options import TrainCommand
from patchwords.evaluation.sweeps.config import SweepConfig

if TYPE_CHECKING:
    from rich.console import Console

    from patchwords.data.dataset import ImageDataset
    from patchwords.evaluation.sweeps.sweep import SweepResult
    from patchwords.training.logs.display import Display

SeriesT = TypeVar("SeriesT")


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
    """Sweep, write the table and the figure, print the result."""
    from patchwords.evaluation.sweeps.sweep import sweep_learning_rates

    views = (sweep_results, sweep_rows, draw_sweep, print_sweep)
    return run_series(config, sweep_learning_rates, *views)


def run_series(
    config: Any,
    train: Callable[[Any, Display, Callable[[Path, ImageDataset], object]], SeriesT],
    results: Callable[[SeriesT], dict[str, Any]],
    rows: Callable[[SeriesT], list[dict[str, Any]]],
    draw: Callable[[SeriesT], dict[str, bytes]],
    show: Callable[[SeriesT, Console], None],
) -> int:
    """Train several runs into one folder; write their results, rows and figure, print them."""
    config.check()
    from patchwords.cli.format import make_console
    from patchwords.cli.options import write_results
    from patchwords.distributed import is_main_process
    from patchwords.report.run_insight import write_report_with_insight
    from patchwords.training.logs.display import Display

    console = make_console(stderr=config.json, quiet=not is_main_process())
    report = partial(write_report_with_insight, device=config.machine.device)
    outcome = train(config, Display(console), report)
    if not is_main_process():  # of several processes, the main one writes and prints
        return 0
    summary = results(outcome)
    write_results(Path(summary["folder"]), summary, rows(outcome), draw(outcome))
    if config.json:
        print(jsonlib.dumps(summary))
    else:
        show(outcome, console)
    return 0


def sweep_results(outcome: SweepResult) -> dict[str, Any]:
    """Make results.json, which --json prints, too."""
    return {
        "folder": str(outcome.folder),
        "cells": [asdict(trial) for trial in outcome.cells],
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
    """Make the rows of results.csv: one per run."""
    table: list[dict[str, Any]] = []
    for trial in outcome.cells:
        low, high = (None, None) if trial.accuracy is None else trial.interval
        table.append(
            {
                "run": trial.folder,
                "lr": trial.lr,
                "seed": None,
                "split": "dev",
                "accuracy": trial.accuracy,
                "low": low,
                "high": high,
                "loss": trial.loss,
                "images": trial.images,
                "chosen": trial is outcome.chosen,
                "note": trial.why,
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
    """Draw dev accuracy over the learning rate."""
    from patchwords.report.figures.plots import Curve, Panel, draw_panels

    trained = [trial for trial in outcome.cells if trial.accuracy is not None]
    low, high = zip(*(trial.interval for trial in trained), strict=True)
    rates = [trial.lr for trial in trained]
    accuracy = [trial.accuracy for trial in trained if trial.accuracy is not None]
    diverged = [f"{trial.lr:g}" for trial in outcome.cells if trial.accuracy is None]
    caption = (
        f"Accuracy on {trained[0].images:,} dev images, with 95 % intervals (Wilson); "
        f"{outcome.chosen.lr:g} is chosen. {format_sweep_accuracy(outcome)}."
        + (f" Training diverged at {', '.join(diverged)}." if diverged else "")
    )
    curve = Curve("dev", rates, accuracy, low, high)
    panel = Panel(
        "Learning rate", "peak learning rate", "accuracy", [curve], log_x=True, x_ticks=rates
    )
    return draw_panels([panel], caption, "sweep")


def format_sweep_accuracy(outcome: SweepResult) -> str:
    """Format the test accuracy with its interval or, for several seeds, its deviation."""
    first, spread = outcome.finals[0].evaluation, outcome.spread
    if spread.std is None:
        low, high = first["accuracy"]["low"], first["accuracy"]["high"]
        uncertainty = f"95 % interval {low:.1%} to {high:.1%}"
    else:
        uncertainty = f"standard deviation {spread.std:.2%} over {spread.n} seeds"
    return f"Test accuracy {spread.mean:.1%} on {first['images']:,} images ({uncertainty})"


def print_sweep(outcome: SweepResult, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("learning rate", "dev accuracy", "95 % interval", "loss", ""):
        table.add_column(name, justify="right" if name else "left")
    for trial in outcome.cells:
        if trial.accuracy is None:
            table.add_row(f"{trial.lr:g}", "-", "-", "-", "diverged")
            continue
        low, high = trial.interval
        chosen = "chosen" if trial is outcome.chosen else ""
        numbers = f"{trial.accuracy:.1%}", f"{low:.1%} to {high:.1%}", f"{trial.loss:.3f}"
        table.add_row(f"{trial.lr:g}", *numbers, chosen)
    console.print(table)
    for line in (
        *outcome.remarks[1:],
        format_sweep_accuracy(outcome),
        f"run:     {outcome.folder / outcome.finals[0].folder}",
        f"table:   {outcome.folder / 'results.csv'}, sweep.png",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
