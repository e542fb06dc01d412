"""Sections about classes: the scores of each one, and which is taken for which."""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.evaluation.metrics import wilson_interval
from patchwords.report.figures.svg import (
    MAX_MATRIX_CLASSES,
    confusion_heat_map,
    confusion_pixel_map,
    reliability_diagram,
)
from patchwords.report.format import RANGE_DASH, format_count, format_percent
from patchwords.report.html import (
    Content,
    Markup,
    html_table,
    meter_cell,
    note,
    number_cell,
    section,
    table_row,
    tag,
)
from patchwords.report.run_data import RunData

MAX_CLASSES_WITH_PAIRS = 10  # classes whose matrix leaves room for the mistakes in words beside it
MAX_CONFUSED_PAIRS = 8  # of confused classes that are listed


def render_class_scores(run: RunData) -> Markup:
    """Precision, recall, F1 and support of each class, and their averages."""
    results = run.evaluation
    if not results:
        return section("classes", "Class by class", note("There are no held-out results."))
    rows = []
    for i, row in enumerate(results["per_class"]):
        ends = (
            wilson_interval(results["confusion"][i][i], row["support"]) if row["support"] else None
        )
        rows.append(
            table_row(
                row["class"],
                meter_cell(row["precision"]),
                meter_cell(row["recall"], render_interval(ends, "recall")),
                meter_cell(row["f1"]),
                number_cell(format_count(row["support"])),
            )
        )
    averages = [
        table_row(
            name,
            *(meter_cell(results[key][word]) for word in ("precision", "recall")),
            meter_cell(results[key]["f1"], render_interval(read_f1_interval(results[key]), "F1")),
            number_cell(format_count(results["images"])),
        )
        for name, key in (("Macro average", "macro"), ("Weighted average", "weighted"))
    ]
    head = ("Class", "Precision", "Recall", "F1", "Images")
    return section(
        "classes",
        "Class by class",
        render_weakest_classes(results),
        html_table(head, rows, averages, look="classes scores"),
        render_metric_definitions(),
    )


def render_interval(ends: tuple[float, float] | None, of: str) -> Content:
    """The two ends, small, beside the number that they are of."""
    if ends is None:
        return None
    low, high = ends
    words = f"{100 * low:.0f}{RANGE_DASH}{100 * high:.0f}"
    return tag("small", words, title=f"95 % interval of {of}")


def read_f1_interval(average: dict[str, Any]) -> tuple[float, float] | None:
    """Of macro F1, where the evaluation is not from before it had an interval."""
    return (average["f1_low"], average["f1_high"]) if "f1_low" in average else None


def render_weakest_classes(results: dict[str, Any]) -> Markup:
    """A sentence on where the model is weakest, and on classes that nothing is known of."""
    known = [row for row in results["per_class"] if row["support"]]
    absent = [row["class"] for row in results["per_class"] if not row["support"]]
    worst = sorted(known, key=lambda row: row["f1"])[: 3 if len(known) > 5 else 1]
    named = ", ".join(f"{row['class']} ({format_percent(row['f1'])})" for row in worst)
    text = f"Lowest F1: {named}."
    if absent:
        text += (
            f" Without a single image in this split, and so left out of the macro average: "
            f"{', '.join(absent)}."
        )
    return tag("p", text, class_="lede")


def render_metric_definitions() -> Markup:
    return note(
        tag("b", "Precision"),
        ": of the images given this class, how many have it. ",
        tag("b", "Recall"),
        ": of the images that have it, how many were given it (with its 95 % interval). ",
        tag("b", "F1"),
        ": their harmonic mean. ",
        tag("b", "Macro"),
        " counts every class alike, ",
        tag("b", "weighted"),
        " by its images; the interval of macro F1 is from drawing the images of each class anew.",
        look="small",
    )


def render_confusion_matrix(run: RunData) -> Markup:
    """Which class is taken for which: the matrix, and its largest mistakes in words."""
    results = run.evaluation
    if not results:
        return section(
            "confusion", "What is taken for what", note("There are no held-out results.")
        )
    matrix, classes = results["confusion"], [row["class"] for row in results["per_class"]]
    if len(classes) <= MAX_MATRIX_CLASSES:
        picture = tag("div", confusion_heat_map(matrix, classes), class_="scroll", tabindex=0)
        caption = (
            "Each row is a true class, each column an answer; shading is the share of the row."
        )
    else:
        picture = tag(
            "img",
            src=confusion_pixel_map(matrix),
            alt=f"Confusion matrix of {len(classes)} classes",
            class_="pixels",
        )
        caption = (
            f"{len(classes)} classes in the order of the table above, true classes downwards, "
            "answers across: the diagonal is right, every other mark is a mistake."
        )
    figure = tag("figure", picture, tag("figcaption", caption))
    return section(
        "confusion",
        "What is taken for what",
        tag(
            "div",
            figure,
            render_confused_pairs(matrix, classes),
            class_="side" if len(classes) <= MAX_CLASSES_WITH_PAIRS else "stack",
        ),
    )


def render_confused_pairs(matrix: list[list[int]], classes: list[str]) -> Markup:
    """The commonest mistakes, most frequent first."""
    counts = np.array(matrix)
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:MAX_CONFUSED_PAIRS]
    pairs = [divmod(int(place), len(classes)) for place in order]
    items = [
        tag(
            "li",
            tag("span", tag("b", classes[i]), " taken for ", tag("b", classes[j])),
            tag("small", f"{format_count(counts[i, j])} of {format_count(totals[i])}"),
        )
        for i, j in pairs
        if counts[i, j]
    ]
    if not items:
        return tag("div", tag("p", "No image was taken for another class."))
    return tag("div", tag("h3", "Commonest mistakes"), tag("ol", *items, class_="pairs"))


# The section on calibration.


NEGLIGIBLE_GAP = 0.02  # a gap between confidence and accuracy that is not worth a word


def render_calibration(run: RunData) -> Markup:
    """Whether the model is as often right as it is sure."""
    results = run.evaluation.get("calibration")
    if not results:
        return section(
            "calibration", "Is it as right as it is sure?", note("There are no held-out results.")
        )
    bins = [b for b in results["bins"] if b["count"]]
    n = sum(b["count"] for b in bins)
    sure = sum(b["confidence"] * b["count"] for b in bins) / n
    right = sum(b["accuracy"] * b["count"] for b in bins) / n
    gap = sure - right
    if abs(gap) < NEGLIGIBLE_GAP:
        verdict = "On the whole its confidence can be taken at its word."
    elif gap > 0:
        verdict = f"It is over-confident by {100 * gap:.0f} points: trust its percentages less."
    else:
        verdict = (
            f"It is too modest by {-100 * gap:.0f} points: it is right more often than it says."
        )
    words = tag(
        "div",
        tag(
            "p",
            f"On average the model is {format_percent(sure)} sure of its answer, and {format_percent(right)} of "
            f"the answers are right. {verdict}",
            class_="lede",
        ),
        tag(
            "p",
            "The images are sorted into bins by how sure the model is. A bar tells how many of a "
            f"bin are right: on the dashed line, {format_percent(0.8, 0)} sure means right 8 times in 10; "
            "a bar below it means over-confidence. A dot stands at the mean confidence of its bin; "
            "pale bars rest on fewer than 10 images and say little.",
        ),
        tag(
            "p",
            tag("b", f"Expected calibration error {format_percent(results['ece'])}"),
            ": the mean distance, over all images, between dot and dashed line. It is somewhat "
            "too high where the images are few, and it says nothing of images unlike these.",
        ),
    )
    figure = tag("figure", reliability_diagram(results["bins"]))
    return section(
        "calibration",
        "Is it as right as it is sure?",
        tag("div", figure, words, class_="side"),
    )
