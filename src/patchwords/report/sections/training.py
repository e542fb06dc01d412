"""Training section: loss, accuracy, learning rate and few-shot accuracy by step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from patchwords.report.figures.svg import collect_training_charts, line_chart
from patchwords.report.format import (
    NO_BREAK_SPACE,
    format_count,
    format_learning_rate,
    format_percent,
    pluralise,
)
from patchwords.report.html import Content, Markup, html_table, note, number_cell, section, tag
from patchwords.report.run_data import RunData

MAX_NAMED_SPIKES = 8  # others are only counted
CHART_OF_SCORE = {"accuracy": "Accuracy", "miou": "mIoU"}  # key of an evaluation -> chart

# chart -> format of a value, and the largest possible value
CHART_FORMATS: dict[str, tuple[Callable[[float], str], float | None]] = {
    "Loss": (lambda y: f"{y:.3g}", None),
    "Accuracy": (lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", 1.0),
    "mIoU": (lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", 1.0),
    "Pixel accuracy": (lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", 1.0),
    "Learning rate": (format_learning_rate, None),
    "Few-shot accuracy": (lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", 1.0),
}


def render_training_curves(run: RunData) -> Markup:
    """Render the training curves, with notes on few-shot accuracy and loss spikes."""
    train, evaluations = run.rows("train"), run.rows("evaluation")
    title = "Training"
    if run.results.get("of"):
        evaluated = ("This page evaluates ", tag("code", run.results["of"]))
        return section(
            "curves", title, note(*evaluated, "; its own report has the training curves.")
        )
    if not train and not evaluations:
        return section("curves", title, note("metrics.jsonl has no rows, so there are no curves."))
    figures = []
    for name, lines in collect_training_charts(run):
        alt = f"{name} over the training steps: {', '.join(line.name for line in lines)}"
        show, ceiling = CHART_FORMATS[name]
        chart = line_chart(lines, alt, show, ceiling)
        figures.append(tag("figure", tag("figcaption", name), chart))
    return section(
        "curves",
        title,
        tag("p", *describe_training(train, evaluations), class_="lede"),
        tag("div", *figures, class_="charts"),
        render_fewshot_note(run.rows("fewshot")),
        render_loss_spikes(run.rows("note")),
        render_evaluation_table(evaluations),
    )


def describe_training(
    train: list[dict[str, Any]], evaluations: list[dict[str, Any]]
) -> list[Content]:
    """Describe duration, best accuracy and speed, as far as they were logged."""
    last = max([*train, *evaluations], key=lambda row: row["step"])
    epochs = f" ({last['epoch']:.3g} epochs)" if last.get("epoch") else ""
    sentences: list[Content] = [f"{pluralise(last['step'], 'step')}{epochs}. "]
    for key, name in (("accuracy", "accuracy"), ("miou", "mIoU")):
        scored = [row for row in evaluations if row.get(key) is not None]
        if scored:
            best = max(scored, key=lambda row: row[key])
            sentences.append(
                f"Best {best.get('split', 'validation')} {name} {format_percent(best[key])} at step "
                f"{format_count(best['step'])}. "
            )
    speeds = [row["images_per_second"] for row in train if row.get("images_per_second")]
    waits = [row["data_wait"] for row in train if row.get("data_wait") is not None]
    if speeds:
        sentences.append(
            f"Median speed {format_count(statistics.median(speeds))} images per second"
        )
        if used := median_utilisation(train):
            sentences.append(f", {format_percent(used, 0)} of the device's matrix product peak")
        waited = f", {format_percent(statistics.mean(waits), 0)} of the time waiting for images"
        sentences.append(f"{waited if waits else ''}.")
    return sentences


def median_utilisation(train: list[dict[str, Any]]) -> float | None:
    """Return the median share of the device's peak; None if it was not measured."""
    shares = [row["utilisation"] for row in train if row.get("utilisation")]
    return statistics.median(shares) if shares else None


def render_fewshot_note(probes: list[dict[str, Any]]) -> Markup | None:
    """Explain few-shot accuracy: the quality of the features without the head."""
    complete = [row for row in probes if {"shots", "images", "accuracy"} <= row.keys()]
    if not complete:
        return None
    last = complete[-1]
    return note(
        "Few-shot accuracy: a linear classifier fitted in closed form to the frozen model's "
        f"features of {pluralise(last['shots'], 'training image')} per class, measured on "
        f"{pluralise(last['images'], 'validation image')}. At the end "
        f"{format_percent(last['accuracy'])}.",
        look="small",
    )


def render_loss_spikes(notes: list[dict[str, Any]]) -> Markup | None:
    """List the steps at which the loss jumped."""
    steps = [format_count(row["step"]) for row in notes if row.get("about") == "loss spike"]
    if not steps:
        return None
    named = ", ".join(steps[:MAX_NAMED_SPIKES])
    more = f" and {len(steps) - MAX_NAMED_SPIKES} more" if len(steps) > MAX_NAMED_SPIKES else ""
    return note(
        f"The loss jumped more than 4 robust deviations above the median of the rows before it "
        f"{'once' if len(steps) == 1 else f'{len(steps)} times'}, at "
        f"{'step' if len(steps) == 1 else 'steps'} {named}{more}.",
        look="small",
    )


def render_evaluation_table(evaluations: list[dict[str, Any]]) -> Markup | None:
    """Render the evaluations as a table."""
    if not evaluations:
        return None
    score = "miou" if "miou" in evaluations[0] else "accuracy"
    rows = [
        tag(
            "tr",
            number_cell(format_count(row["step"])),
            number_cell(format_optional(row.get("epoch"), ".2f")),
            tag("td", row.get("split", "validation")),
            number_cell(format_optional(row.get("loss"), ".4f")),
            number_cell(format_percent(row.get(score))),
            number_cell(format_optional(row.get("images"), ",d")),
        )
        for row in evaluations
    ]
    head = ("Step", "Epoch", "Split", "Loss", CHART_OF_SCORE[score], "Images")
    return tag("details", tag("summary", "Evaluations as a table"), html_table(head, rows))


def format_optional(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)
