"""Comparison with other runs: accuracies, training curves, and tests of the differences.

Runs are compared as by `patchwords compare`, on the images that both evaluated, matched by path.
Without common images, the interval of the difference is that of independent samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patchwords.errors import DataError
from patchwords.evaluation.statistics import (
    PairedCounts,
    accuracy_difference,
    format_mcnemar_result,
    format_paired_counts,
    proportion_difference,
)
from patchwords.files import format_duration
from patchwords.report.figures.svg import ChartSeries, line_chart, make_series
from patchwords.report.format import RANGE_DASH, format_count, format_percent, pluralise
from patchwords.report.html import Markup, html_table, note, number_cell, section, table_row, tag
from patchwords.report.run_data import RunData
from patchwords.report.sections.training import CHART_FORMATS

if TYPE_CHECKING:
    from patchwords.evaluation.predictions import LabelledPredictions

RUN_LINE_LOOKS = ("first", "second", "third")  # further runs are only in the table
THIS_RUN = "this run"


def render_other_runs(run: RunData, others: Sequence[RunData]) -> Markup | None:
    """Render the comparison; None without other runs."""
    if not others:
        return None
    runs = (run, *others)
    rows = [
        table_row(
            each.folder.resolve().name,
            tag("td", format_initial_weights(each)),
            number_cell(format_accuracy_interval(each)),
            number_cell(format_count(each.evaluation["images"]) if each.evaluation else None),
            number_cell(format_training_length(each)),
        )
        for each in runs
    ]
    lines = make_accuracy_series(runs)
    alt = f"Validation accuracy over the training steps: {', '.join(line.name for line in lines)}"
    chart = tag(
        "figure",
        tag("figcaption", "Validation accuracy during training"),
        line_chart(lines, alt, *CHART_FORMATS["Accuracy"]),
    )
    return section(
        "beside",
        "Comparison with other runs",
        html_table(("Run", "Started from", "Accuracy, 95 % interval", "Images", "Training"), rows),
        tag("div", chart, class_="charts") if lines else None,
        *(render_run_comparison(run, other) for other in others),
    )


def format_initial_weights(run: RunData) -> str:
    weights = run.config.get("weights")
    if weights:
        return Path(weights).name if Path(weights).exists() else str(weights)
    return "random weights" if run.config else "not recorded"


def format_accuracy_interval(run: RunData) -> str | None:
    if not run.evaluation:
        return None
    accuracy = run.evaluation["accuracy"]
    ends = f"{format_percent(accuracy['low'])}{RANGE_DASH}{format_percent(accuracy['high'])}"
    return f"{format_percent(accuracy['value'])} ({ends})"


def format_training_length(run: RunData) -> str | None:
    train = run.rows("train")
    if not train:
        return None
    steps = f"{format_count(train[-1]['step'])} steps"
    return f"{steps}, {format_duration(train[-1]['seconds'])}" if "seconds" in train[-1] else steps


def make_accuracy_series(runs: Sequence[RunData]) -> list[ChartSeries]:
    """Collect the validation accuracy of the first runs, one per line colour."""
    lines = [
        make_series(run.rows("evaluation"), "accuracy", run.folder.resolve().name, look, dots=True)
        for run, look in zip(runs, RUN_LINE_LOOKS, strict=False)
    ]
    return [line for line in lines if line.points]


def render_run_comparison(run: RunData, other: RunData) -> Markup:
    """Describe whether two runs differ by more than chance, as `patchwords compare` does."""
    from patchwords.evaluation.predictions import match_predictions, require_same_classes

    name = other.folder.resolve().name
    what = "Compared with ", tag("b", name)
    if not (run.evaluation and other.evaluation):
        return note(*what, ": nothing can be said of the difference, as an accuracy is missing.")
    try:
        a, b = collect_run_predictions(other, name), collect_run_predictions(run, THIS_RUN)
        require_same_classes(a.name, a.classes, b.name, b.classes)
        if set(a.keys).isdisjoint(b.keys):
            return note(*what, f": {describe_unpaired_difference(run, other, name)}")
        same_a, same_b = match_predictions(a, b)
    except DataError as error:
        return note(*what, f": nothing can be said of the difference, as {error}.")
    pairs = PairedCounts.of(same_a.right, same_b.right)
    left = len(a) - len(same_a), len(b) - len(same_b)
    aside = (
        f"; left out: {format_count(left[0])} of {name} and {format_count(left[1])} of {THIS_RUN}"
    )
    return note(
        *what,
        f", on the {pluralise(pairs.n, 'image')} that both evaluated: {format_paired_counts(pairs, name, THIS_RUN)}"
        f"{aside if any(left) else ''}. The difference is {format_point_difference(accuracy_difference(pairs))}; "
        f"{format_mcnemar_result(pairs, name, THIS_RUN)}.",
    )


def collect_run_predictions(run: RunData, name: str) -> LabelledPredictions:
    """Collect predictions of labelled images; raise DataError if the run's files do not fit."""
    from patchwords.evaluation.predictions import parse_labelled_predictions

    rows = [
        (row.path, row.label, row.prediction, row.probability)
        for row in run.predictions
        if row.correct is not None
    ]
    return parse_labelled_predictions(name, run.evaluation, rows)


def describe_unpaired_difference(run: RunData, other: RunData, name: str) -> str:
    """Describe the difference of two runs without known common images."""
    shares = [
        (accuracy["value"], accuracy["low"], accuracy["high"])
        for accuracy in (each.evaluation["accuracy"] for each in (other, run))
    ]
    value, low, high = proportion_difference(shares[0], shares[1])
    known = run.predictions and other.predictions
    why = "no image was evaluated by both" if known else "the evaluated images are not recorded"
    ahead = (
        "which may be chance"
        if low <= 0 <= high
        else f"{THIS_RUN if value > 0 else name} is ahead by more than chance"
    )
    return (
        f"{why}, so the runs are compared as if on different images. The difference is "
        f"{format_point_difference((value, low, high))}, {ahead}; the same images would give a "
        "narrower interval."
    )


def format_point_difference(difference: tuple[float, float, float]) -> str:
    """Format the difference, this run minus the other, in points with its interval."""
    value, low, high = (f"{100 * share:+.2f}" for share in difference)
    return f"{value} points for {THIS_RUN} (95 % interval {low} to {high})"
