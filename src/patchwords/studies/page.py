"""A study's page: page.html, one file that opens offline, and page.md for documents."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from patchwords.report.blocks import number, row_of, table
from patchwords.report.html import Markup, tag, whole_page
from patchwords.report.write import POLICY, emblem, style
from patchwords.studies.contents import Command, Heading, Picture, Piece, Text

GOOD, BAD = "agrees", "disagrees"


def html(title: str, pieces: Sequence[Piece], figures: Mapping[str, bytes]) -> str:
    """The page as text; the figures are inside."""
    first, *rest = sections(pieces)
    header = tag("header", emblem(), tag("div", tag("h1", title), *map(lead, first)))
    main = tag(
        "main", *(tag("section", *(element(piece, figures) for piece in part)) for part in rest)
    )
    foot = tag("footer", "Made by patchwords. This page is one file and loads nothing.")
    body = tag("body", header, main, foot)
    return whole_page(f"{title}: patchwords study", style() + STYLE, POLICY, body)


STYLE = """
figure img { max-width: 100%; height: auto; background: #fff; border-radius: 8px; padding: 8px; }
td.agrees { color: var(--good); font-weight: 600; }
td.disagrees { color: var(--bad); font-weight: 600; }
section td, section th { vertical-align: top; }
section td.num { text-align: left; }
"""


def sections(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """What stands before the first heading, then each heading with what follows it."""
    parts: list[list[Piece]] = [[]]
    for piece in pieces:
        if isinstance(piece, Heading):
            parts.append([])
        parts[-1].append(piece)
    return parts


def lead(piece: Piece) -> Markup:
    assert isinstance(piece, Text)
    return tag("p", piece.text)


def element(piece: Piece, figures: Mapping[str, bytes]) -> Markup:
    if isinstance(piece, Heading):
        return tag("h2", piece.text)
    if isinstance(piece, Text):
        return tag("p", piece.text, class_="note")
    if isinstance(piece, Command):
        return tag("pre", piece.text, class_="command")
    if isinstance(piece, Picture):
        png = base64.b64encode(figures[f"{piece.name}.png"]).decode()
        return tag("figure", tag("img", src=f"data:image/png;base64,{png}", alt=piece.alt))
    rows = [row_of(name, *map(cell, cells)) for name, *cells in piece.rows]
    return table(piece.head, rows)


def cell(text: str) -> Markup:
    """Verdicts have a colour, numbers digits of one width."""
    if text.startswith((GOOD, BAD)):
        return tag("td", text, class_=text)
    signed = text[:1] in {"+", "-"} and text[1:2].isdigit() and not any(map(str.isalpha, text))
    is_number = (signed or text[:1].isdigit()) and len(text) < 24
    return number(text) if is_number else tag("td", text)


def markdown(title: str, pieces: Sequence[Piece]) -> str:
    """The page for documents; the figure is beside it."""
    return f"# {title}\n\n" + "\n\n".join(map(paragraph, pieces)) + "\n"


def paragraph(piece: Piece) -> str:
    if isinstance(piece, Heading):
        return f"## {piece.text}"
    if isinstance(piece, Text):
        return piece.text
    if isinstance(piece, Command):
        return f"```\n{piece.text}\n```"
    if isinstance(piece, Picture):
        return f"![{piece.alt}]({piece.name}.png)"
    lines = [line(piece.head), "|" + "---|" * len(piece.head), *map(line, piece.rows)]
    return "\n".join(lines)


def line(cells: Sequence[str]) -> str:
    """A row of a table; a stroke inside a cell would end it."""
    escaped = (word.replace("|", "/") for word in cells)
    return f"| {' | '.join(escaped)} |"
