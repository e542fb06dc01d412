"""HTML from functions: plain text is always escaped, and only `Markup` passes as it is."""

from __future__ import annotations

from html import escape

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
