"""Sections about classes: the scores of each one, and which is taken for which."""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.evaluate.metrics import wilson
from patchwords.report.blocks import meter, note, number, row_of, section, table
from patchwords.report.diagrams import MOST_CELLS, heat_map, pixel_map
from patchwords.report.html import Content, Markup, tag
from patchwords.report.run import Run
from patchwords.report.words import TO, count, percent

MOST_BESIDE = 10  # classes whose matrix leaves room for the mistakes in words beside it
MOST_PAIRS = 8  # of confused classes that are listed


def per_class(run: Run) -> Markup:
    """Precision, recall, F1 and support of each class, and their averages."""
    results = run.evaluation
    if not results:
        return section("classes", "Class by class", note("There are no held-out results."))
    rows = []
    for i, row in enumerate(results["per_class"]):
        ends = wilson(results["confusion"][i][i], row["support"]) if row["support"] else None
        rows.append(
            row_of(
                row["class"],
                meter(row["precision"]),
                meter(row["recall"], interval(ends, "recall")),
                meter(row["f1"]),
                number(count(row["support"])),
            )
        )
    averages = [
        row_of(
            name,
            *(meter(results[key][word]) for word in ("precision", "recall")),
            meter(results[key]["f1"], interval(f1_ends(results[key]), "F1")),
            number(count(results["images"])),
        )
        for name, key in (("Macro average", "macro"), ("Weighted average", "weighted"))
    ]
    head = ("Class", "Precision", "Recall", "F1", "Images")
    return section(
        "classes",
        "Class by class",
        weakest(results),
        table(head, rows, averages, look="classes scores"),
        terms(),
    )


def interval(ends: tuple[float, float] | None, of: str) -> Content:
    """The two ends, small, beside the number that they are of."""
    if ends is None:
        return None
    low, high = ends
    words = f"{100 * low:.0f}{TO}{100 * high:.0f}"
    return tag("small", words, title=f"95 % interval of {of}")


def f1_ends(average: dict[str, Any]) -> tuple[float, float] | None:
    """Of macro F1, where the evaluation is not from before it had an interval."""
    return (average["f1_low"], average["f1_high"]) if "f1_low" in average else None


def weakest(results: dict[str, Any]) -> Markup:
    """A sentence on where the model is weakest, and on classes that nothing is known of."""
    known = [row for row in results["per_class"] if row["support"]]
    absent = [row["class"] for row in results["per_class"] if not row["support"]]
    worst = sorted(known, key=lambda row: row["f1"])[: 3 if len(known) > 5 else 1]
    named = ", ".join(f"{row['class']} ({percent(row['f1'])})" for row in worst)
    text = f"Lowest F1: {named}."
    if absent:
        text += (
            f" Without a single image in this split, and so left out of the macro average: "
            f"{', '.join(absent)}."
        )
    return tag("p", text, class_="lede")


def terms() -> Markup:
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


def confusion(run: Run) -> Markup:
    """Which class is taken for which: the matrix, and its largest mistakes in words."""
    results = run.evaluation
    if not results:
        return section(
            "confusion", "What is taken for what", note("There are no held-out results.")
        )
    matrix, classes = results["confusion"], [row["class"] for row in results["per_class"]]
    if len(classes) <= MOST_CELLS:
        picture = tag("div", heat_map(matrix, classes), class_="scroll", tabindex=0)
        caption = (
            "Each row is a true class, each column an answer; shading is the share of the row."
        )
    else:
        picture = tag(
            "img",
            src=pixel_map(matrix),
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
            confused_pairs(matrix, classes),
            class_="side" if len(classes) <= MOST_BESIDE else "stack",
        ),
    )


def confused_pairs(matrix: list[list[int]], classes: list[str]) -> Markup:
    """The commonest mistakes, most frequent first."""
    counts = np.array(matrix)
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [divmod(int(place), len(classes)) for place in order]
    items = [
        tag(
            "li",
            tag("span", tag("b", classes[i]), " taken for ", tag("b", classes[j])),
            tag("small", f"{count(counts[i, j])} of {count(totals[i])}"),
        )
        for i, j in pairs
        if counts[i, j]
    ]
    if not items:
        return tag("div", tag("p", "No image was taken for another class."))
    return tag("div", tag("h3", "Commonest mistakes"), tag("ol", *items, class_="pairs"))
