"""The section on training: loss, accuracy and learning rate over the steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from patchwords.report.blocks import note, number, section, table
from patchwords.report.charts import line_chart, training_lines
from patchwords.report.html import Content, Markup, tag
from patchwords.report.run import Run
from patchwords.report.words import SPACE, count, percent, plural, rate

# chart -> how a value is written, and the highest that there can be
SHOWN: dict[str, tuple[Callable[[float], str], float | None]] = {
    "Loss": (lambda y: f"{y:.3g}", None),
    "Accuracy": (lambda y: f"{100 * y:.3g}{SPACE}%", 1.0),
    "Learning rate": (rate, None),
}


def curves(run: Run) -> Markup:
    """Loss, accuracy and learning rate over the steps."""
    train, evaluations = run.rows("train"), run.rows("evaluation")
    title = "How it learned"
    if run.evaluation.get("of"):
        elsewhere = ("This page judges ", tag("code", run.evaluation["of"]))
        return section("curves", title, note(*elsewhere, "; its own report shows how it learned."))
    if not train and not evaluations:
        return section("curves", title, note("metrics.jsonl has no rows: there are no curves."))
    figures = []
    for name, lines in training_lines(run):
        alt = f"{name} over the training steps: {', '.join(line.name for line in lines)}"
        show, ceiling = SHOWN[name]
        chart = line_chart(lines, alt, show, ceiling)
        figures.append(tag("figure", tag("figcaption", name), chart))
    return section(
        "curves",
        title,
        tag("p", *training_story(train, evaluations), class_="lede"),
        tag("div", *figures, class_="charts"),
        evaluation_table(evaluations),
    )


def training_story(train: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> list[Content]:
    """How long, how good at best, how fast: a sentence each, where the rows tell it."""
    last = max([*train, *evaluations], key=lambda row: row["step"])
    epochs = f" ({last['epoch']:.3g} epochs)" if last.get("epoch") else ""
    story: list[Content] = [f"{plural(last['step'], 'step')}{epochs}. "]
    scored = [row for row in evaluations if row.get("accuracy") is not None]
    if scored:
        best = max(scored, key=lambda row: row["accuracy"])
        story.append(
            f"Best {best.get('split', 'validation')} accuracy {percent(best['accuracy'])} at step "
            f"{count(best['step'])}. "
        )
    speeds = [row["images_per_second"] for row in train if row.get("images_per_second")]
    waits = [row["data_wait"] for row in train if row.get("data_wait") is not None]
    if speeds:
        story.append(f"Median speed {count(statistics.median(speeds))} images per second")
        waited = f", {percent(statistics.mean(waits), 0)} of the time waiting for images"
        story.append(f"{waited if waits else ''}.")
    return story


def evaluation_table(evaluations: list[dict[str, Any]]) -> Markup | None:
    """The numbers behind the dots, for those who cannot see them or want them."""
    if not evaluations:
        return None
    rows = [
        tag(
            "tr",
            number(count(row["step"])),
            number(written(row.get("epoch"), ".2f")),
            tag("td", row.get("split", "validation")),
            number(written(row.get("loss"), ".4f")),
            number(percent(row.get("accuracy"))),
            number(written(row.get("images"), ",d")),
        )
        for row in evaluations
    ]
    head = ("Step", "Epoch", "Split", "Loss", "Accuracy", "Images")
    return tag("details", tag("summary", "The evaluations as numbers"), table(head, rows))


def written(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)
