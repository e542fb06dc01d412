"""Page and table of the images whose label looks wrong: labels.html and labels.csv."""

from __future__ import annotations

import csv
import io
from importlib.resources import files
from pathlib import Path

from patchwords.evaluation.probes.label_errors import FOLDS, LabelErrors, LabelSuspect
from patchwords.files import write_atomically
from patchwords.report.format import format_percent, format_probability, pluralise
from patchwords.report.html import Content, Markup, html_document, note, section, tag
from patchwords.report.page import PAGE_SECURITY_POLICY
from patchwords.report.sections.predictions import RunImages

PAGE, TABLE = "labels.html", "labels.csv"
MAX_PICTURES = 120


def write_label_errors(folder: Path, errors: LabelErrors, source: str) -> None:
    """Write the page with the first pictures, and the table of all images."""
    text = render_label_page(errors, source)
    write_atomically(folder / PAGE, text)
    table = format_label_table(errors).encode("utf-8", "surrogateescape")
    write_atomically(folder / TABLE, table)


def format_label_table(errors: LabelErrors) -> str:
    """Format a row per judged image as CSV, the most suspicious first."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["rank", *LabelSuspect._fields])
    for rank, suspect in enumerate(errors.suspects, 1):
        *ids, p_label, p_suggested, score, suspicious = suspect
        numbers = [f"{value:.6f}" for value in (p_label, p_suggested, score)]
        rows.writerow([rank, *ids, *numbers, "true" if suspicious else "false"])
    return text.getvalue()


def render_label_page(errors: LabelErrors, source: str) -> str:
    """Render the page: what was done, and the pictures of the most suspicious labels."""
    album = RunImages.from_dataset(errors.examples)
    shown = errors.suspects[:MAX_PICTURES]
    cards = [render_suspect(suspect, album) for suspect in shown]
    lede = tag(
        "p",
        f"Of {pluralise(len(errors.suspects), 'label')} {errors.suspicious:,} look wrong: each is ten "
        f"times less probable than usual in its class. Shown are the {len(shown)} that look most "
        "wrong, the worst first: the class that the features suggest, and the label.",
        class_="lede",
    )
    how = note(
        f"A linear probe on the features of {errors.model} was fitted {FOLDS} times, each time "
        f"without a fifth of the images, which it then judged. It predicts "
        f"{format_percent(errors.accuracy)} of the labels: the others are not all wrong, the features "
        "cannot tell them apart. A picture here is a reason to look at it, not a proof; an image of "
        "two classes, or of none, is here for a good reason, too."
    )
    body = tag(
        "body",
        tag("header", tag("div", tag("h1", "Labels to check"), tag("p", source))),
        tag("main", section("labels", "Labels", lede, how, tag("div", *cards, class_="gallery"))),
    )
    style = files("patchwords.report").joinpath("style.css").read_text(encoding="utf-8")
    return html_document(f"{source}: labels to check", style, PAGE_SECURITY_POLICY, body)


def render_suspect(suspect: LabelSuspect, album: RunImages) -> Markup:
    """Render the card of an image: suggested class, label, path."""
    picture = album.picture(suspect.path, f"labelled {suspect.label}")
    if not isinstance(picture, Markup):
        picture = tag("span", f"No picture: {picture}", class_="gone")
    lines: list[Content] = [
        tag(
            "p",
            tag("b", suspect.suggested),
            tag("small", format_probability(suspect.p_suggested)),
            class_="bad" if suspect.suspicious else None,
        ),
        tag(
            "p",
            tag("span", "labelled ", tag("b", suspect.label)),
            tag("small", format_probability(suspect.p_label)),
        ),
        tag("p", tag("small", suspect.path)),
    ]
    frame = tag("div", picture, class_="frame")
    return tag("figure", frame, tag("figcaption", *lines), title=suspect.path, class_="card")
