"""What stands on the page of a study, in order, before it is HTML or Markdown."""

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
    """The whole page; every number on it is in the results."""
    return [
        PageText(f"{results['question']} {results['source']}; scale: {results['scale']}."),
        PageHeading("Claims"),
        PageTable(("claim", "paper", "here", "decided by", "verdict"), build_claim_rows(results)),
        PageText(DECISION_RULE),
        PageHeading("Numbers"),
        *build_number_blocks(study, results),
        *(PageFigure(name, f"{results['title']}: {results['quantity']}") for name in pictures),
        *study.tables(results),
        PageHeading("How"),
        *(PageText(note) for note in results["notes"]),
        PageText(format_method(study, results)),
        *build_optional_table(
            ("pre-training", "its settings"), build_grid_rows(results["encoders"])
        ),
        *build_optional_table(("setting of every cell", "value"), build_setting_rows(results)),
        PageTable(("cell", "what is its own"), build_grid_rows(results["grid"])),
        PageHeading("Compute"),
        PageText(format_compute_spent(results)),
        PageCommand(command),
    ]


DECISION_RULE = (
    "A claim agrees, or disagrees, where the 95 % interval of its difference lies to one side; "
    "else this scale cannot tell. Differences are paired by seed, intervals are Student's t over "
    "the seeds. A margin holds for claims that two things are alike. A claim with parts is told "
    "where all of them say the same. A control shows that what a claim is about does something at "
    "all: where it fails, the claim was not tested here. Claims, rule and margins were fixed "
    "before the first run; parts and controls came after it, and can only take a verdict away."
)


def build_claim_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (one["text"], one["paper"], format_difference(one), one["rule"], verdict(one))
        for one in results["claims"]
    ]


def format_difference(claim: Mapping[str, Any]) -> str:
    """In its unit, with its interval; each of its parts; and the seeds that are missing."""
    parts = "".join(f"; {one['name']} {difference_of(one)}" for one in claim["parts"])
    return difference_of(claim) + parts


def verdict(claim: Mapping[str, Any]) -> str:
    """The word; of what was not tested with the reason."""
    if claim["verdict"] != UNTESTED:
        return str(claim["verdict"])
    failed = (one for one in claim["controls"] if not one["shown"])
    said = "; ".join(f"{one['name']} is {difference_of(one)}" for one in failed)
    return f"{UNTESTED}: {claim['untested'] or said}"


def difference_of(one: Mapping[str, Any]) -> str:
    """Of a claim as a whole, of a part or of a control."""
    found, unit = one["difference"], one["unit"]
    if found is None:
        return "no seed is left: training diverged"
    mean, low, high = (
        None if found[name] is None else f"{unit['times'] * found[name]:+.{unit['digits'] + 1}f}"
        for name in ("mean", "low", "high")
    )
    value = f"{mean} {unit['difference']}"
    said = (
        f"{value}, of one seed"
        if low is None
        else f"{value} (95 % interval {low} to {high}, {found['n']} seeds)"
    )
    lost = ", ".join(map(str, one["seeds_lost"]))
    return f"{said}; diverged: seed {lost}" if lost else said


def build_number_blocks(study: Study, results: Mapping[str, Any]) -> list[PageBlock]:
    """The paper's beside ours: in the form of its table, where that has rows and columns."""
    by_label = {one["label"]: one for one in results["labels"]}
    said = PageText(f"Here: {results['quantity']}. Paper: {study.paper_quantity}. {study.note}")
    if study.layout is None:
        rows = [(label, *format_ours_and_paper(one)) for label, one in by_label.items()]
        return [said, *build_comparison_table(study, rows)]
    every, all_columns = study.layout  # of every scale
    names = [name for name in every if any(f"{name}, {one}" in by_label for one in all_columns)]
    columns = [one for one in all_columns if any(f"{name}, {one}" in by_label for name in names)]
    inside = {name: [f"{name}, {column}" for column in columns] for name in names}
    table = [
        (name, *(format_matrix_cell(by_label.get(one)) for one in inside[name])) for name in names
    ]
    beyond = by_label.keys() - {one for row in inside.values() for one in row}
    rows = [
        (label, *format_ours_and_paper(one)) for label, one in by_label.items() if label in beyond
    ]
    head = "here (paper)" if study.paper else "here"
    return [said, PageTable((head, *columns), table), *build_comparison_table(study, rows)]


def build_comparison_table(study: Study, rows: Sequence[Sequence[str]]) -> list[PageBlock]:
    """A label, ours, and the paper's where it prints any."""
    if study.paper:
        return build_optional_table(("", "here", "paper"), rows)
    return build_optional_table(("", "here"), [row[:2] for row in rows])


def format_matrix_cell(label: Mapping[str, Any] | None) -> str:
    if label is None:
        return NOT_AVAILABLE
    ours, paper = format_ours_and_paper(label)
    return ours if label["paper"] is None else f"{ours} ({paper})"


def format_ours_and_paper(label: Mapping[str, Any]) -> tuple[str, str]:
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


def format_method(study: Study, results: Mapping[str, Any]) -> str:
    judged = next((one for one in results["cells"] if "test images" in one), None)
    places = " and ".join(filter(None, (results["data"], results["transfer"])))
    if not places:
        return (
            f"{pluralise(len(results['grid']), 'cell')} x {pluralise(results['seeds'], 'repeat')}."
        )
    by = f", judged by {format_count(judged['test images'])} images" if judged else ""
    chosen = {one["cell"] for one in results["labels"]} - {None}
    asked = any(one.get("validation") is not None for one in results["cells"])
    some = asked and 0 < len(chosen) < len(results["grid"]) and study.judge is not None
    first = (
        " Only the cells that validation images chose were asked about them, once." if some else ""
    )
    return (
        f"{pluralise(len(results['grid']), 'cell')} x {pluralise(results['seeds'], 'seed')} on "
        f"{places}{by}.{first} ± is the standard deviation of a seed. "
        "Cells of one seed see the same images in the same order."
    )


def build_setting_rows(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, format_setting_value(value)) for name, value in results["settings"].items()]


def build_grid_rows(cells: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [
        (name, ", ".join(f"{key} {format_setting_value(value)}" for key, value in own.items()))
        for name, own in cells.items()
    ]


def build_optional_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[PageBlock]:
    """Nothing where there are no rows."""
    return [PageTable(head, rows)] if rows else []


def format_compute_spent(results: Mapping[str, Any]) -> str:
    spent = results["compute"]
    if not spent["trainings"]:
        return "Nothing was trained. The command:"
    lost = f"; {format_count(spent['diverged'])} of them diverged" if spent["diverged"] else ""
    return (
        f"{pluralise(spent['trainings'], 'training')}{lost}: {format_compact(spent['images'])} images seen, "
        f"{format_flops(spent['flops'])} (6 x MACs x images, as Table 6 counts), "
        f"{format_duration(spent['seconds'])} of training in all processes together. The command:"
    )


def format_flops(number: float) -> str:
    """
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


# A study's page: page.html, one file that opens offline, and page.md for documents.


AGREES, DISAGREES = "agrees", "disagrees"


def render_html_page(title: str, pieces: Sequence[PageBlock], figures: Mapping[str, bytes]) -> str:
    """The page as text; the figures are inside."""
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
    """What stands before the first heading, then each heading with what follows it."""
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
    """Verdicts have a colour, numbers digits of one width."""
    if text.startswith((AGREES, DISAGREES)):
        return tag("td", text, class_=text)
    signed = text[:1] in {"+", "-"} and text[1:2].isdigit() and not any(map(str.isalpha, text))
    is_number = (signed or text[:1].isdigit()) and len(text) < 24
    return number_cell(text) if is_number else tag("td", text)


def render_markdown_page(title: str, pieces: Sequence[PageBlock]) -> str:
    """The page for documents; the figure is beside it."""
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
    """A row of a table; a stroke inside a cell would end it."""
    escaped = (word.replace("|", "/") for word in cells)
    return f"| {' | '.join(escaped)} |"
