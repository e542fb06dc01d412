"""The run beside others: accuracies in one table, curves in one chart, and whether they differ.

Runs are compared as `patchwords compare` does, on the images that both judged, matched by path.
Where there are none, the interval of the difference is that of different images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchwords.duration import duration
from patchwords.errors import DataError
from patchwords.evaluate.answers import Answers, answers_in, matched, refuse_other_classes
from patchwords.evaluate.paired import Pairs, apart, difference, tally, verdict
from patchwords.report.blocks import note, number, row_of, section, table
from patchwords.report.charts import Series, line_chart, series_of
from patchwords.report.html import Markup, tag
from patchwords.report.learning import SHOWN
from patchwords.report.run import Run
from patchwords.report.words import TO, count, percent, plural

LOOKS = ("first", "second", "third")  # of the lines; more runs are in the table alone
THIS = "this run"


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
    """In words, whether the two differ by more than chance; as `patchwords compare` has it."""
    name = other.folder.resolve().name
    what = "Beside ", tag("b", name)
    if not (run.evaluation and other.evaluation):
        return note(*what, ": nothing can be said of the difference, as an accuracy is missing.")
    try:
        a, b = answers_of(other, name), answers_of(run, THIS)
        refuse_other_classes(a.name, a.classes, b.name, b.classes)
        if set(a.keys).isdisjoint(b.keys):
            return note(*what, f": {of_other_images(run, other, name)}")
        same_a, same_b = matched(a, b)
    except DataError as error:
        return note(*what, f": nothing can be said of the difference, as {error}.")
    pairs = Pairs.of(same_a.right, same_b.right)
    left = len(a) - len(same_a), len(b) - len(same_b)
    aside = f"; left out: {count(left[0])} of {name} and {count(left[1])} of {THIS}"
    return note(
        *what,
        f", on the {plural(pairs.n, 'image')} that both judged: {tally(pairs, name, THIS)}"
        f"{aside if any(left) else ''}. The difference is {in_points(difference(pairs))}; "
        f"{verdict(pairs, name, THIS)}.",
    )


def answers_of(run: Run, name: str) -> Answers:
    """To the images that have a label. Raises DataError where the run's files do not fit."""
    rows = [
        (row.path, row.label, row.prediction, row.probability)
        for row in run.predictions
        if row.correct is not None
    ]
    return answers_in(name, run.evaluation, rows)


def of_other_images(run: Run, other: Run, name: str) -> str:
    """The difference where nothing says that the same images were judged."""
    shares = [
        (found["value"], found["low"], found["high"])
        for found in (one.evaluation["accuracy"] for one in (other, run))
    ]
    value, low, high = apart(shares[0], shares[1])
    known = run.predictions and other.predictions
    why = "no image was judged by both" if known else "which images were judged is not known"
    ahead = (
        "which may be chance"
        if low <= 0 <= high
        else f"{THIS if value > 0 else name} is ahead by more than chance"
    )
    return (
        f"{why}, so the accuracies are taken for those of different images. The difference is "
        f"{in_points((value, low, high))}, {ahead}; on the same images it would be known better."
    )


def in_points(difference: tuple[float, float, float]) -> str:
    """This run less the other, in hundredths, with its interval."""
    value, low, high = (f"{100 * share:+.2f}" for share in difference)
    return f"{value} points for {THIS} (95 % interval {low} to {high})"
