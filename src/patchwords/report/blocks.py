"""What the sections of the page are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from patchwords.report.html import Content, Markup, tag
from patchwords.report.words import UNKNOWN_VALUE, format_percent

MAX_UNSCROLLED_ROWS = 30  # rows; a longer one scrolls in its own box


def section(name: str, title: str, *content: Content) -> Markup:
    """A part of the page that the contents can link to."""
    return tag("section", tag("h2", title), *content, id=name, aria_label=title)


def note(*content: Content, look: str = "note") -> Markup:
    return tag("p", *content, class_=look)


def html_table(
    head: Sequence[str],
    rows: Sequence[Markup],
    foot: Iterable[Markup] = (),
    look: str | None = None,
) -> Markup:
    """A table in a box that scrolls sideways on a phone, and downwards where it would fill pages.

    The rows are <tr> elements.
    """
    columns = tag("thead", tag("tr", *(tag("th", word, scope="col") for word in head)))
    drawn = tag(
        "table", columns if head else None, tag("tbody", *rows), tag("tfoot", *foot), class_=look
    )
    tall = " tall" if len(rows) > MAX_UNSCROLLED_ROWS else ""
    return tag("div", drawn, class_=f"scroll{tall}", tabindex=0)


def table_row(name: Content, *cells: Markup) -> Markup:
    """A table row that begins with its name."""
    return tag("tr", tag("th", name, scope="row"), *cells)


def number_cell(content: Content) -> Markup:
    """A cell with a number; None is nothing known."""
    return tag("td", UNKNOWN_VALUE if content is None else content, class_="num")


def meter_cell(value: float | None, detail: Content = None) -> Markup:
    """A cell with a share and a bar as long."""
    if value is None:
        return number_cell(None)
    return tag(
        "td", tag("span", format_percent(value)), detail, share_bar(value), class_="num meter"
    )


def share_bar(share: float) -> Markup:
    return tag("i", style=f"--share:{100 * share:.1f}%")
