"""HTML elements as functions: plain text is always escaped, `Markup` is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from patchwords.report.format import UNKNOWN_VALUE, format_percent

VOID_ELEMENTS = {"img", "br", "meta", "col"}  # elements without an end tag
MAX_UNSCROLLED_ROWS = 30  # a longer table scrolls in its own box


class Markup(str):
    """Text that is HTML or SVG."""

    __slots__ = ()


Content = str | int | float | None


def to_markup(content: Content) -> Markup:
    """Convert content to HTML; None becomes empty."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    return Markup(escape(replace_surrogates(str(content))))


def replace_surrogates(text: str) -> str:
    """Replace surrogates, which file names that are not UTF-8 contain."""
    return text.encode("utf-8", "replace").decode("utf-8")


def join_markup(*contents: Content) -> Markup:
    """Concatenate contents."""
    return Markup("".join(map(to_markup, contents)))


def tag(name: str, /, *contents: Content, **attributes: Content) -> Markup:
    """Render an element; `class_` is class, `stroke_width` is stroke-width, None is left out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{to_markup(round_coordinate(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID_ELEMENTS:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{join_markup(*contents)}</{name}>")


def round_coordinate(value: Content) -> Content:
    """Round coordinates to two decimals: a report has thousands of them."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def html_document(title: str, style: str, policy: str, body: Markup) -> str:
    """Render a page of one file with its CSS and its Content-Security-Policy."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section(name: str, title: str, *content: Content) -> Markup:
    """Render a section that the table of contents links to."""
    return tag("section", tag("h2", title), *content, id=name, aria_label=title)


def note(*content: Content, look: str = "note") -> Markup:
    """Render a paragraph in small type."""
    return tag("p", *content, class_=look)


def html_table(
    head: Sequence[str],
    rows: Sequence[Markup],
    foot: Iterable[Markup] = (),
    look: str | None = None,
) -> Markup:
    """Render a table of <tr> rows in a box that scrolls when the table is wide or long."""
    columns = tag("thead", tag("tr", *(tag("th", word, scope="col") for word in head)))
    table = tag(
        "table", columns if head else None, tag("tbody", *rows), tag("tfoot", *foot), class_=look
    )
    tall = " tall" if len(rows) > MAX_UNSCROLLED_ROWS else ""
    return tag("div", table, class_=f"scroll{tall}", tabindex=0)


def table_row(name: Content, *cells: Markup) -> Markup:
    """Render a table row that starts with its name."""
    return tag("tr", tag("th", name, scope="row"), *cells)


def number_cell(content: Content) -> Markup:
    """Render a number; None is shown as unknown."""
    return tag("td", UNKNOWN_VALUE if content is None else content, class_="num")


def meter_cell(value: float | None, detail: Content = None) -> Markup:
    """Render a share with a bar of this length."""
    if value is None:
        return number_cell(None)
    return tag(
        "td", tag("span", format_percent(value)), detail, share_bar(value), class_="num meter"
    )


def share_bar(share: float) -> Markup:
    """Render a bar for a share of 0 to 1."""
    return tag("i", style=f"--share:{100 * share:.1f}%")
