"""What stands on the page of a study, in order, before it is HTML or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchwords.duration import duration
from patchwords.report.words import big, count, plural
from patchwords.studies.study import Study

NONE = "N/A"


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Rows:
    """A table; the first column names its rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    name: str  # of the figure's files, without ending
    alt: str


@dataclass(frozen=True)
class Command:
    text: str


Piece = Heading | Text | Rows | Picture | Command


def contents(
    study: Study, results: Mapping[str, Any], pictures: Sequence[str], command: str
) -> list[Piece]:
    """The whole page; every number on it is in the results."""
    return [
        Text(f"{results['question']} {results['source']}; scale: {results['scale']}."),
        Heading("Claims"),
        Rows(("claim", "paper", "here", "decided by", "verdict"), claims(results)),
        Text(RULE),
        Heading("Numbers"),
        *numbers(study, results),
        *(Picture(name, f"{results['title']}: {results['quantity']}") for name in pictures),
        *study.tables(results),
        Heading("How"),
        *(Text(note) for note in results["notes"]),
        Text(how(study, results)),
        *tabled(("pre-training", "its settings"), grid(results["encoders"])),
        *tabled(("setting of every cell", "value"), settings(results)),
        Rows(("cell", "what is its own"), grid(results["grid"])),
        Heading("Compute"),
        Text(compute(results)),
        Command(command),
    ]


RULE = (
    "The rule was fixed before the run: a claim agrees, or disagrees, where the 95 % interval of "
    "its difference lies to one side; else this scale cannot tell. Differences are paired by seed, "
    "intervals are Student's t over the seeds. A margin holds for claims that two things are alike."
)


def claims(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (one["text"], one["paper"], difference(one), one["rule"], one["verdict"])
        for one in results["claims"]
    ]


def difference(claim: Mapping[str, Any]) -> str:
    """In its unit, with its interval; and the seeds that are missing."""
    found, unit = claim["difference"], claim["unit"]
    if found is None:
        return "no seed is left: training diverged"
    mean, low, high = (
        None if found[name] is None else f"{unit['times'] * found[name]:+.{unit['digits'] + 1}f}"
        for name in ("mean", "low", "high")
    )
    value = f"{mean} {unit['difference']}"
    if low is None:
        said = f"{value}, of one seed"
    else:
        said = f"{value} (95 % interval {low} to {high}, {found['n']} seeds)"
    lost = ", ".join(map(str, claim["seeds_lost"]))
    return f"{said}; diverged: seed {lost}" if lost else said


def numbers(study: Study, results: Mapping[str, Any]) -> list[Piece]:
    """The paper's beside ours: in the form of its table, where that has rows and columns."""
    by_label = {one["label"]: one for one in results["labels"]}
    said = Text(f"Here: {results['quantity']}. Paper: {study.paper_quantity}. {study.note}")
    if study.layout is None:
        rows = [(label, *beside(one)) for label, one in by_label.items()]
        return [said, *with_paper(study, rows)]
    every, all_columns = study.layout  # of every scale
    names = [name for name in every if any(f"{name}, {one}" in by_label for one in all_columns)]
    columns = [one for one in all_columns if any(f"{name}, {one}" in by_label for name in names)]
    inside = {name: [f"{name}, {column}" for column in columns] for name in names}
    table = [(name, *(matrix_cell(by_label.get(one)) for one in inside[name])) for name in names]
    beyond = by_label.keys() - {one for row in inside.values() for one in row}
    rows = [(label, *beside(one)) for label, one in by_label.items() if label in beyond]
    head = "here (paper)" if study.paper else "here"
    return [said, Rows((head, *columns), table), *with_paper(study, rows)]


def with_paper(study: Study, rows: Sequence[Sequence[str]]) -> list[Piece]:
    """A label, ours, and the paper's where it prints any."""
    if study.paper:
        return tabled(("", "here", "paper"), rows)
    return tabled(("", "here"), [row[:2] for row in rows])


def matrix_cell(label: Mapping[str, Any] | None) -> str:
    if label is None:
        return NONE
    ours, paper = beside(label)
    return ours if label["paper"] is None else f"{ours} ({paper})"


def beside(label: Mapping[str, Any]) -> tuple[str, str]:
    """Ours with the standard deviation of a seed, and the paper's."""
    over, paper, unit = label["over_seeds"], label["paper"], label["unit"]

    def told(value: float) -> str:
        return f"{unit['times'] * value:.{unit['digits']}f}"

    if over is None:
        ours = "diverged"
    elif over["std"] is None:
        ours = told(over["mean"])
    else:
        ours = f"{told(over['mean'])} ± {told(over['std'])}"
    return ours, "-" if paper is None else told(paper)


def how(study: Study, results: Mapping[str, Any]) -> str:
    judged = next((one for one in results["cells"] if "test images" in one), None)
    places = " and ".join(filter(None, (results["data"], results["transfer"])))
    if not places:
        return f"{plural(len(results['grid']), 'cell')} x {plural(results['seeds'], 'repeat')}."
    by = f", judged by {count(judged['test images'])} images" if judged else ""
    chosen = {one["cell"] for one in results["labels"]} - {None}
    asked = any(one.get("validation") is not None for one in results["cells"])
    some = asked and 0 < len(chosen) < len(results["grid"]) and study.judge is not None
    first = (
        " Only the cells that validation images chose were asked about them, once." if some else ""
    )
    return (
        f"{plural(len(results['grid']), 'cell')} x {plural(results['seeds'], 'seed')} on "
        f"{places}{by}.{first} ± is the standard deviation of a seed. "
        "Cells of one seed see the same images in the same order."
    )


def settings(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, said(value)) for name, value in results["settings"].items()]


def grid(cells: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [
        (name, ", ".join(f"{key} {said(value)}" for key, value in own.items()))
        for name, own in cells.items()
    ]


def tabled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Piece]:
    """Nothing where there are no rows."""
    return [Rows(head, rows)] if rows else []


def compute(results: Mapping[str, Any]) -> str:
    spent = results["compute"]
    if not spent["trainings"]:
        return "Nothing was trained. The command:"
    lost = f"; {count(spent['diverged'])} of them diverged" if spent["diverged"] else ""
    return (
        f"{plural(spent['trainings'], 'training')}{lost}: {big(spent['images'])} images seen, "
        f"{flops(spent['flops'])} (6 x MACs x images, as Table 6 counts), "
        f"{duration(spent['seconds'])} of training in all processes together. The command:"
    )


def flops(number: float) -> str:
    """
    >>> flops(4.15e14), flops(1.2e16), flops(6.69e20)
    ('415 TFLOPs', '12 PFLOPs', '669 exaFLOPs')
    """
    for size, unit in ((1e18, "exa"), (1e15, "P"), (1e12, "T"), (1e9, "G")):
        if number >= size:
            figure = number / size
            shown = f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
            return f"{shown} {unit}FLOPs"
    return f"{number:,.0f} FLOPs"


def said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(said, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
