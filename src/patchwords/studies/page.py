"""The page of a study: its blocks in order, as HTML that opens offline and as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.files import format_duration
from patchwords.report.format import format_compact, format_count, pluralise
from patchwords.report.html import Markup, html_document, html_table, number_cell, table_row, tag
from patchwords.report.page import PAGE_SECURITY_POLICY, draw_logo, read_stylesheet
from patchwords.studies.page_blocks import (
    PageBlock,
    PageCommand,
    PageFigure,
    PageHeading,
    PageTable,
    PageText,
)
from patchwords.studies.results import UNTESTED
from patchwords.studies.study import Study

NOT_AVAILABLE = "N/A"


def build_page_blocks(
    study: Study, results: Mapping[str, Any], pictures: Sequence[str], command: str
) -> list[PageBlock]:
    """Build the blocks of the page from results.json."""
    return [
        PageText(f"{results['question']} {results['source']}; scale: {results['scale']}."),
        *([PageText(MINI_NOTE)] if results["scale"] == "mini" else []),
        PageHeading("Claims"),
        PageTable(("claim", "paper", "here", "rule", "verdict"), build_claim_rows(results)),
        PageText(DECISION_RULE),
        PageHeading("Numbers"),
        *build_number_blocks(study, results),
        *(PageFigure(name, f"{results['title']}: {results['quantity']}") for name in pictures),
        *study.build_tables(results),
        PageHeading("How"),
        *(PageText(note) for note in results["notes"]),
        PageText(format_method(study, results)),
        *build_optional_table(("pre-training", "settings"), build_grid_rows(results["encoders"])),
        *build_optional_table(("setting of every trial", "value"), build_setting_rows(results)),
        PageTable(("trial", "own settings"), build_grid_rows(results["grid"])),
        PageHeading("Compute"),
        PageText(format_compute_spent(results)),
        PageCommand(command),
    ]


DECISION_RULE = (
    "The verdict is agrees or disagrees if p is at most 5 %, else this scale cannot tell; p is "
    "adjusted by Holm's method for the number of claims on this page, so that the chance of any "
    "wrong verdict among them is at most 5 %. Claims that two things are equal have a margin, and "
    "agree by two one-sided tests. Each interval is of 95 %, on its own, by Student's t. Where trials "
    "are trainings of their own the variance between seeds is pooled over all of them, less what "
    "their seeds share; elsewhere, and where trials differ in their variance (Bartlett's test), "
    "differences are paired by seed. Where all seeds have the same test images the choice of these "
    "is in the interval, too; without the answers to single images those of two trials count as "
    "independent, which makes it wider. Numbers that are computed of several accuracies (doublings, "
    "slopes, shares) have intervals over seeds alone. A single seed has one over test images alone. "
    "A claim with parts has the largest p of its whole and its parts. A control shows that the "
    "treatment has an effect at all: if its own interval is not above 0, the claim was not tested "
    "here. Claims and margins were fixed before the first run; parts, controls and this rule came "
    "later."
)
MINI_NOTE = (
    "Scale mini is a smoke run: it shows that the study works, with models at the beginning of their "
    "training. No verdict of it says anything of trained models."
)


def build_claim_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            claim["text"],
            claim["paper"],
            format_difference(claim),
            claim["rule"],
            format_verdict(claim),
        )
        for claim in results["claims"]
    ]


def format_difference(claim: Mapping[str, Any]) -> str:
    """Format a difference with its unit, interval, parts, missing seeds and p."""
    parts = "".join(f"; {one['name']} {format_contrast(one)}" for one in claim["parts"])
    known = claim["difference"] is not None and claim["difference"]["low"] is not None
    p = f"; p {format_p(claim['p'])}" if known and not claim["untested"] else ""
    return format_contrast(claim) + parts + p


def format_p(p: float) -> str:
    """Format a p-value to two digits.

    >>> format_p(0.0312), format_p(0.00004), format_p(1.0)
    ('0.031', 'below 0.001', '1')
    """
    return "below 0.001" if p < 0.001 else f"{p:.2g}"


def format_verdict(claim: Mapping[str, Any]) -> str:
    """Format the verdict; with the reason if the claim was not tested."""
    if claim["verdict"] != UNTESTED:
        return str(claim["verdict"])
    failed = (control for control in claim["controls"] if not control["shown"])
    reasons = "; ".join(f"{control['name']} is {format_contrast(control)}" for control in failed)
    return f"{UNTESTED}: {claim['untested'] or reasons}"


def format_contrast(row: Mapping[str, Any]) -> str:
    """Format the difference of a claim, a part or a control."""
    statistics, unit = row["difference"], row["unit"]
    if statistics is None:
        return "diverged in every seed"
    mean, low, high = (
        None
        if statistics[name] is None
        else f"{unit['times'] * statistics[name]:+.{unit['digits'] + 1}f}"
        for name in ("mean", "low", "high")
    )
    value = f"{mean} {unit['difference']}"
    text = (
        f"{value}, one seed"
        if low is None
        else f"{value} (95 % interval {low} to {high}, {pluralise(statistics['n'], 'seed')})"
    )
    lost = ", ".join(map(str, row["seeds_lost"]))
    return f"{text}; diverged in seed {lost}" if lost else text


def build_number_blocks(study: Study, results: Mapping[str, Any]) -> list[PageBlock]:
    """Build the table of the paper's numbers next to the measured ones."""
    by_label = {row["label"]: row for row in results["labels"]}
    note = PageText(f"Here: {results['quantity']}. Paper: {study.paper_quantity}. {study.note}")
    if study.layout is None:
        rows = [(label, *format_ours_and_paper(row)) for label, row in by_label.items()]
        return [note, *build_comparison_table(study, rows)]
    every, all_columns = study.layout  # rows and columns of the paper's table, at every scale
    names = [
        name for name in every if any(f"{name}, {column}" in by_label for column in all_columns)
    ]
    columns = [
        column for column in all_columns if any(f"{name}, {column}" in by_label for name in names)
    ]
    matrix = {name: [f"{name}, {column}" for column in columns] for name in names}
    table = [
        (name, *(format_matrix_cell(by_label.get(label)) for label in matrix[name]))
        for name in names
    ]
    beyond = by_label.keys() - {label for row in matrix.values() for label in row}
    rows = [
        (label, *format_ours_and_paper(row)) for label, row in by_label.items() if label in beyond
    ]
    head = "here (paper)" if study.paper else "here"
    return [note, PageTable((head, *columns), table), *build_comparison_table(study, rows)]


def build_comparison_table(study: Study, rows: Sequence[Sequence[str]]) -> list[PageBlock]:
    """Build a table of labels, measured values and the paper's."""
    if study.paper:
        return build_optional_table(("", "here", "paper"), rows)
    return build_optional_table(("", "here"), [row[:2] for row in rows])


def format_matrix_cell(label: Mapping[str, Any] | None) -> str:
    if label is None:
        return NOT_AVAILABLE
    ours, paper = format_ours_and_paper(label)
    return ours if label["paper"] is None else f"{ours} ({paper})"


def format_ours_and_paper(label: Mapping[str, Any]) -> tuple[str, str]:
    """Format the measured value with its standard deviation, next to the paper's."""
    over, paper, unit = label["over_seeds"], label["paper"], label["unit"]

    def format_value(value: float) -> str:
        return f"{unit['times'] * value:.{unit['digits']}f}"

    if over is None:
        ours = "diverged"
    elif over["std"] is None:
        ours = format_value(over["mean"])
    else:
        ours = f"{format_value(over['mean'])} ± {format_value(over['std'])}"
    return ours, "-" if paper is None else format_value(paper)


def format_method(study: Study, results: Mapping[str, Any]) -> str:
    evaluated = next((trial for trial in results["cells"] if "test images" in trial), None)
    sources = " and ".join(filter(None, (results["data"], results["transfer"])))
    if not sources:
        return (
            f"{pluralise(len(results['grid']), 'trial')} x {pluralise(results['seeds'], 'repeat')}."
        )
    on_test = f", evaluated on {format_count(evaluated['test images'])} images" if evaluated else ""
    chosen = {row["cell"] for row in results["labels"]} - {None}
    validated = any(trial.get("validation") is not None for trial in results["cells"])
    selected = (
        validated and 0 < len(chosen) < len(results["grid"]) and study.evaluate_trial is not None
    )
    selection = (
        " Only the trials chosen by validation images were evaluated on them, once."
        if selected
        else ""
    )
    return (
        f"{pluralise(len(results['grid']), 'trial')} x {pluralise(results['seeds'], 'seed')} on "
        f"{sources}{on_test}.{selection} ± is the standard deviation over seeds. "
        "Trials of one seed see the same images in the same order."
    )


def build_setting_rows(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, format_setting_value(value)) for name, value in results["settings"].items()]


def build_grid_rows(grid: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [
        (name, ", ".join(f"{key} {format_setting_value(value)}" for key, value in settings.items()))
        for name, settings in grid.items()
    ]


def build_optional_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[PageBlock]:
    """Build a table; nothing without rows."""
    return [PageTable(head, rows)] if rows else []


def format_compute_spent(results: Mapping[str, Any]) -> str:
    spent = results["compute"]
    if not spent["trainings"]:
        return "Nothing was trained. The command:"
    lost = f"; {format_count(spent['diverged'])} of them diverged" if spent["diverged"] else ""
    return (
        f"{pluralise(spent['trainings'], 'training')}{lost}: {format_compact(spent['images'])} images seen, "
        f"{format_flops(spent['flops'])} (6 x MACs x images, as in Table 6), "
        f"{format_duration(spent['seconds'])} of training, summed over processes. The command:"
    )


def format_flops(number: float) -> str:
    """Format FLOPs with a unit.

    >>> format_flops(4.15e14), format_flops(1.2e16), format_flops(6.69e20)
    ('415 TFLOPs', '12 PFLOPs', '669 exaFLOPs')
    """
    for size, unit in ((1e18, "exa"), (1e15, "P"), (1e12, "T"), (1e9, "G")):
        if number >= size:
            figure = number / size
            shown = f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
            return f"{shown} {unit}FLOPs"
    return f"{number:,.0f} FLOPs"


def format_setting_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(format_setting_value, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# page.html, one file that opens offline, and page.md for documents.


AGREES, DISAGREES = "agrees", "disagrees"


def render_html_page(title: str, pieces: Sequence[PageBlock], figures: Mapping[str, bytes]) -> str:
    """Render the page as one HTML file with its figures embedded."""
    first, *rest = split_into_sections(pieces)
    header = tag(
        "header", draw_logo(), tag("div", tag("h1", title), *map(render_lead_paragraph, first))
    )
    main = tag(
        "main",
        *(tag("section", *(render_html_block(piece, figures) for piece in part)) for part in rest),
    )
    foot = tag("footer", "Made by patchwords. This page is one file and loads nothing.")
    body = tag("body", header, main, foot)
    return html_document(
        f"{title}: patchwords study", read_stylesheet() + STUDY_STYLE, PAGE_SECURITY_POLICY, body
    )


STUDY_STYLE = """
figure img { max-width: 100%; height: auto; background: #fff; border-radius: 8px; padding: 8px; }
td.agrees { color: var(--good); font-weight: 600; }
td.disagrees { color: var(--bad); font-weight: 600; }
section td, section th { vertical-align: top; }
section td.num { text-align: left; }
"""


def split_into_sections(pieces: Sequence[PageBlock]) -> list[list[PageBlock]]:
    """Split blocks into those before the first heading and one list per heading."""
    parts: list[list[PageBlock]] = [[]]
    for piece in pieces:
        if isinstance(piece, PageHeading):
            parts.append([])
        parts[-1].append(piece)
    return parts


def render_lead_paragraph(piece: PageBlock) -> Markup:
    assert isinstance(piece, PageText)
    return tag("p", piece.text)


def render_html_block(piece: PageBlock, figures: Mapping[str, bytes]) -> Markup:
    if isinstance(piece, PageHeading):
        return tag("h2", piece.text)
    if isinstance(piece, PageText):
        return tag("p", piece.text, class_="note")
    if isinstance(piece, PageCommand):
        return tag("pre", piece.text, class_="command")
    if isinstance(piece, PageFigure):
        png = base64.b64encode(figures[f"{piece.name}.png"]).decode()
        return tag("figure", tag("img", src=f"data:image/png;base64,{png}", alt=piece.alt))
    rows = [table_row(name, *map(render_study_cell, cells)) for name, *cells in piece.rows]
    return html_table(piece.head, rows)


def render_study_cell(text: str) -> Markup:
    """Render a table cell: verdicts in colour, numbers with equal-width digits."""
    if text.startswith((AGREES, DISAGREES)):
        return tag("td", text, class_=text)
    signed = text[:1] in {"+", "-"} and text[1:2].isdigit() and not any(map(str.isalpha, text))
    is_number = (signed or text[:1].isdigit()) and len(text) < 24
    return number_cell(text) if is_number else tag("td", text)


def render_markdown_page(title: str, pieces: Sequence[PageBlock]) -> str:
    """Render the page as Markdown with a link to the figure."""
    return f"# {title}\n\n" + "\n\n".join(map(render_markdown_block, pieces)) + "\n"


def render_markdown_block(piece: PageBlock) -> str:
    if isinstance(piece, PageHeading):
        return f"## {piece.text}"
    if isinstance(piece, PageText):
        return piece.text
    if isinstance(piece, PageCommand):
        return f"```\n{piece.text}\n```"
    if isinstance(piece, PageFigure):
        return f"![{piece.alt}]({piece.name}.png)"
    lines = [
        render_markdown_row(piece.head),
        "|" + "---|" * len(piece.head),
        *map(render_markdown_row, piece.rows),
    ]
    return "\n".join(lines)


def render_markdown_row(cells: Sequence[str]) -> str:
    """Render a table row, with vertical bars escaped."""
    escaped = (word.replace("|", "/") for word in cells)
    return f"| {' | '.join(escaped)} |"
