"""A study's page: page.html, one file that opens offline, and page.md for documents."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from patchwords.report.blocks import html_table, number_cell, table_row
from patchwords.report.html import Markup, html_document, tag
from patchwords.report.write import PAGE_SECURITY_POLICY, draw_logo, read_stylesheet
from patchwords.studies.contents import PageBlock, PageCommand, PageFigure, PageHeading, PageText

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
