"""The section on training: loss, accuracy, learning rate and few-shot accuracy over the steps."""

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

MAX_NAMED_SPIKES = 8  # named; the rest are counted

# chart -> how a value is written, and the highest that there can be
CHART_FORMATS: dict[str, tuple[Callable[[float], str], float | None]] = {
    "Loss": (lambda y: f"{y:.3g}", None),
    "Accuracy": (lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", 1.0),
    "Learning rate": (format_learning_rate, None),
    "Few-shot accuracy": (lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", 1.0),
}


def render_training_curves(run: RunData) -> Markup:
    """Loss, accuracy, learning rate and, where it was measured, few-shot accuracy."""
    train, evaluations = run.rows("train"), run.rows("evaluation")
    title = "How it learned"
    if run.evaluation.get("of"):
        elsewhere = ("This page judges ", tag("code", run.evaluation["of"]))
        return section("curves", title, note(*elsewhere, "; its own report shows how it learned."))
    if not train and not evaluations:
        return section("curves", title, note("metrics.jsonl has no rows: there are no curves."))
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
    """How long, how good at best, how fast: a sentence each, where the rows tell it."""
    last = max([*train, *evaluations], key=lambda row: row["step"])
    epochs = f" ({last['epoch']:.3g} epochs)" if last.get("epoch") else ""
    story: list[Content] = [f"{pluralise(last['step'], 'step')}{epochs}. "]
    scored = [row for row in evaluations if row.get("accuracy") is not None]
    if scored:
        best = max(scored, key=lambda row: row["accuracy"])
        story.append(
            f"Best {best.get('split', 'validation')} accuracy {format_percent(best['accuracy'])} at step "
            f"{format_count(best['step'])}. "
        )
    speeds = [row["images_per_second"] for row in train if row.get("images_per_second")]
    waits = [row["data_wait"] for row in train if row.get("data_wait") is not None]
    if speeds:
        story.append(f"Median speed {format_count(statistics.median(speeds))} images per second")
        if used := median_utilisation(train):
            story.append(f", {format_percent(used, 0)} of what the device's matrix products reach")
        waited = f", {format_percent(statistics.mean(waits), 0)} of the time waiting for images"
        story.append(f"{waited if waits else ''}.")
    return story


def median_utilisation(train: list[dict[str, Any]]) -> float | None:
    """The usual share of the device's peak; None where it was not measured."""
    shares = [row["utilisation"] for row in train if row.get("utilisation")]
    return statistics.median(shares) if shares else None


def render_fewshot_note(probes: list[dict[str, Any]]) -> Markup | None:
    """What the last chart says: how good the representation is, whatever the head has learnt."""
    told = [row for row in probes if {"shots", "images", "accuracy"} <= row.keys()]
    if not told:
        return None
    last = told[-1]
    return note(
        "Few-shot accuracy: a linear classifier, fitted in closed form to what the frozen model "
        f"makes of {pluralise(last['shots'], 'training image')} of each class, judged by "
        f"{pluralise(last['images'], 'validation image')}. At the end {format_percent(last['accuracy'])}.",
        look="small",
    )


def render_loss_spikes(notes: list[dict[str, Any]]) -> Markup | None:
    """Where the loss jumped."""
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
    """The numbers behind the dots, for those who cannot see them or want them."""
    if not evaluations:
        return None
    rows = [
        tag(
            "tr",
            number_cell(format_count(row["step"])),
            number_cell(format_optional(row.get("epoch"), ".2f")),
            tag("td", row.get("split", "validation")),
            number_cell(format_optional(row.get("loss"), ".4f")),
            number_cell(format_percent(row.get("accuracy"))),
            number_cell(format_optional(row.get("images"), ",d")),
        )
        for row in evaluations
    ]
    head = ("Step", "Epoch", "Split", "Loss", "Accuracy", "Images")
    return tag("details", tag("summary", "The evaluations as numbers"), html_table(head, rows))


def format_optional(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)
