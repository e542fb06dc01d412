"""Class sections: scores of each class, confusion matrix, calibration."""

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

MAX_CLASSES_WITH_PAIRS = 10  # up to which the list of mistakes fits next to the matrix
MAX_CONFUSED_PAIRS = 8
NEGLIGIBLE_GAP = 0.02  # between confidence and accuracy
CONFUSION_TITLE = "Confusion matrix"
CALIBRATION_TITLE = "Calibration"


def render_class_scores(run: RunData) -> Markup:
    """Render precision, recall, F1 and support of each class, and their averages."""
    results = run.evaluation
    if not results:
        return section("classes", "Classes", note("There are no held-out results."))
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
        "Classes",
        render_weakest_classes(results),
        html_table(head, rows, averages, look="classes scores"),
        render_metric_definitions(),
    )


def render_interval(ends: tuple[float, float] | None, metric: str) -> Content:
    """Render the 95 % interval of a metric in small type."""
    if ends is None:
        return None
    low, high = ends
    text = f"{100 * low:.0f}{RANGE_DASH}{100 * high:.0f}"
    return tag("small", text, title=f"95 % interval of {metric}")


def read_f1_interval(average: dict[str, Any]) -> tuple[float, float] | None:
    """Return the interval of an average F1; None for evaluations of older versions."""
    return (average["f1_low"], average["f1_high"]) if "f1_low" in average else None


def render_weakest_classes(results: dict[str, Any]) -> Markup:
    """Name the classes with the lowest F1, and classes without images."""
    known = [row for row in results["per_class"] if row["support"]]
    absent = [row["class"] for row in results["per_class"] if not row["support"]]
    worst = sorted(known, key=lambda row: row["f1"])[: 3 if len(known) > 5 else 1]
    named = ", ".join(f"{row['class']} ({format_percent(row['f1'])})" for row in worst)
    text = f"Lowest F1: {named}."
    if absent:
        text += (
            f" Without an image in this split, and left out of the macro average: "
            f"{', '.join(absent)}."
        )
    return tag("p", text, class_="lede")


def render_metric_definitions() -> Markup:
    return note(
        tag("b", "Precision"),
        ": the share of the images answered with this class that have it. ",
        tag("b", "Recall"),
        ": the share of the images of this class that were answered with it (with its 95 % "
        "interval). ",
        tag("b", "F1"),
        ": their harmonic mean. ",
        tag("b", "Macro"),
        " averages the classes with equal weight, ",
        tag("b", "weighted"),
        " by their images; the interval of macro F1 is from resampling the images of each class.",
        look="small",
    )


def render_confusion_matrix(run: RunData) -> Markup:
    """Render the confusion matrix and a list of its largest mistakes."""
    results = run.evaluation
    if not results:
        return section("confusion", CONFUSION_TITLE, note("There are no held-out results."))
    matrix, classes = results["confusion"], [row["class"] for row in results["per_class"]]
    if len(classes) <= MAX_MATRIX_CLASSES:
        picture = tag("div", confusion_heat_map(matrix, classes), class_="scroll", tabindex=0)
        caption = "Each row is a true class, each column a predicted class; shading is the share of the row."
    else:
        picture = tag(
            "img",
            src=confusion_pixel_map(matrix),
            alt=f"Confusion matrix of {len(classes)} classes",
            class_="pixels",
        )
        caption = (
            f"{len(classes)} classes in the order of the table above: rows are true classes, columns "
            "predicted classes. The diagonal is right, every other mark is a mistake."
        )
    figure = tag("figure", picture, tag("figcaption", caption))
    return section(
        "confusion",
        CONFUSION_TITLE,
        tag(
            "div",
            figure,
            render_confused_pairs(matrix, classes),
            class_="side" if len(classes) <= MAX_CLASSES_WITH_PAIRS else "stack",
        ),
    )


def render_confused_pairs(matrix: list[list[int]], classes: list[str]) -> Markup:
    """List the most frequent mistakes."""
    counts = np.array(matrix)
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:MAX_CONFUSED_PAIRS]
    pairs = [divmod(int(place), len(classes)) for place in order]
    items = [
        tag(
            "li",
            tag("span", tag("b", classes[i]), " predicted as ", tag("b", classes[j])),
            tag("small", f"{format_count(counts[i, j])} of {format_count(totals[i])}"),
        )
        for i, j in pairs
        if counts[i, j]
    ]
    if not items:
        return tag("div", tag("p", "No image was predicted as another class."))
    return tag("div", tag("h3", "Most frequent mistakes"), tag("ol", *items, class_="pairs"))


def render_calibration(run: RunData) -> Markup:
    """Render how well the model's confidence matches its accuracy."""
    results = run.evaluation.get("calibration")
    if not results:
        return section("calibration", CALIBRATION_TITLE, note("There are no held-out results."))
    bins = [b for b in results["bins"] if b["count"]]
    n = sum(b["count"] for b in bins)
    confidence = sum(b["confidence"] * b["count"] for b in bins) / n
    accuracy = sum(b["accuracy"] * b["count"] for b in bins) / n
    gap = confidence - accuracy
    if abs(gap) < NEGLIGIBLE_GAP:
        verdict = "Overall its confidence is accurate."
    elif gap > 0:
        verdict = f"It is over-confident by {100 * gap:.0f} points."
    else:
        verdict = f"It is under-confident by {-100 * gap:.0f} points."
    explanation = tag(
        "div",
        tag(
            "p",
            f"The model's mean confidence is {format_percent(confidence)}, its accuracy "
            f"{format_percent(accuracy)}. {verdict}",
            class_="lede",
        ),
        tag(
            "p",
            "The images are grouped into bins by the model's confidence. A bar is the accuracy of "
            f"its bin: on the dashed line, a confidence of {format_percent(0.8, 0)} is right 8 times "
            "in 10; a bar below it means over-confidence. A dot marks the mean confidence of its "
            "bin; pale bars have fewer than 10 images and are unreliable.",
        ),
        tag(
            "p",
            tag("b", f"Expected calibration error {format_percent(results['ece'])}"),
            ": the mean distance, over all images, between dot and dashed line. It is slightly "
            "too high with few images, and does not apply to images from other sources.",
        ),
    )
    figure = tag("figure", reliability_diagram(results["bins"]))
    return section(
        "calibration",
        CALIBRATION_TITLE,
        tag("div", figure, explanation, class_="side"),
    )
