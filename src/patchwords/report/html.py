"""HTML from functions: plain text is always escaped, and only `Markup` passes as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from patchwords.report.format import UNKNOWN_VALUE, format_percent

VOID_ELEMENTS = {"img", "br", "meta", "col"}  # elements without an end tag


class Markup(str):
    """Text that is HTML (or SVG) already."""

    __slots__ = ()


Content = str | int | float | None


def to_markup(content: Content) -> Markup:
    """Any content as HTML; None is nothing."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    return Markup(escape(replace_surrogates(str(content))))


def replace_surrogates(words: str) -> str:
    """Words that any file can hold: a file name that is not UTF-8 has surrogates in it."""
    return words.encode("utf-8", "replace").decode("utf-8")


def join_markup(*contents: Content) -> Markup:
    """Contents one after the other."""
    return Markup("".join(map(to_markup, contents)))


def tag(name: str, /, *contents: Content, **attributes: Content) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; None leaves one out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{to_markup(round_coordinate(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID_ELEMENTS:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join_markup(*contents)}</{name}>")


def round_coordinate(value: Content) -> Content:
    """Coordinates with two decimals: a report holds thousands of them."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def html_document(title: str, look: str, policy: str, body: Markup) -> str:
    """A page that is one file: with its CSS, and what its Content-Security-Policy allows."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(look)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


# What the sections of the page are made of.


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
