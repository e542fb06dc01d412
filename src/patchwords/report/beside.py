"""The run beside others: accuracies in one table, curves in one chart, and whether they differ.

Runs are compared on the images that both judged, matched by path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from patchwords.evaluate.paired import Pairs, difference, mcnemar
from patchwords.report.blocks import note, number, row_of, section, table
from patchwords.report.charts import Series, line_chart, series_of
from patchwords.report.html import Markup, tag
from patchwords.report.learning import SHOWN
from patchwords.report.run import Run
from patchwords.report.words import TO, chance, count, duration, percent

LOOKS = ("first", "second", "third")  # of the lines; more runs are in the table alone


def beside(run: Run, others: Sequence[Run]) -> Markup | None:
    """The section; None where there is no other run."""
    if not others:
        return None
    runs = (run, *others)
    rows = [
        row_of(
            one.folder.resolve().name,
            tag("td", beginning(one)),
            number(accuracy(one)),
            number(count(one.evaluation["images"]) if one.evaluation else None),
            number(length(one)),
        )
        for one in runs
    ]
    lines = learning_lines(runs)
    alt = f"Validation accuracy over the training steps: {', '.join(line.name for line in lines)}"
    chart = tag(
        "figure",
        tag("figcaption", "Validation accuracy while training"),
        line_chart(lines, alt, *SHOWN["Accuracy"]),
    )
    return section(
        "beside",
        "Beside other runs",
        table(("Run", "Started from", "Accuracy, 95 % interval", "Images", "Training"), rows),
        tag("div", chart, class_="charts") if lines else None,
        *(comparison(run, other) for other in others),
    )


def beginning(run: Run) -> str:
    weights = run.config.get("weights")
    if weights:
        return Path(weights).name if Path(weights).exists() else str(weights)
    return "random weights" if run.config else "not recorded"


def accuracy(run: Run) -> str | None:
    if not run.evaluation:
        return None
    found = run.evaluation["accuracy"]
    ends = f"{percent(found['low'])}{TO}{percent(found['high'])}"
    return f"{percent(found['value'])} ({ends})"


def length(run: Run) -> str | None:
    train = run.rows("train")
    if not train:
        return None
    steps = f"{count(train[-1]['step'])} steps"
    return f"{steps}, {duration(train[-1]['seconds'])}" if "seconds" in train[-1] else steps


def learning_lines(runs: Sequence[Run]) -> list[Series]:
    """Validation accuracy of the first runs, as many as can be told apart."""
    lines = [
        series_of(run.rows("evaluation"), "accuracy", run.folder.resolve().name, look, dots=True)
        for run, look in zip(runs, LOOKS, strict=False)
    ]
    return [line for line in lines if line.points]


def comparison(run: Run, other: Run) -> Markup:
    """In words, whether the two differ by more than chance."""
    here, there = (
        {row.path: row.correct for row in one.predictions if row.correct is not None}
        for one in (run, other)
    )
    shared = sorted(here.keys() & there.keys())
    name = tag("b", other.folder.resolve().name)
    if not shared:
        return note("Nothing can be said of the difference to ", name, ": no image is in both.")
    pairs = Pairs.of(*(np.array([side[path] for path in shared]) for side in (there, here)))
    gain, low, high = difference(pairs)
    p, _ = mcnemar(pairs)
    verdict = (
        "On these images they cannot be told apart."
        if low <= 0 <= high
        else f"{run.folder.resolve().name if gain > 0 else other.folder.resolve().name} is better."
    )
    return note(
        f"On {count(pairs.n)} images that both judged, this run is {points(gain)} points from ",
        name,
        f" (95 % interval {points(low)}{TO}{points(high)}): it alone is right on "
        f"{count(pairs.only_b)}, the other alone on {count(pairs.only_a)}, and two equally good "
        f"models would differ so much, or more, with probability {chance(p)}. {verdict}",
    )


def points(share: float) -> str:
    """In hundredths, with a sign."""
    return f"{100 * share:+.1f}"
