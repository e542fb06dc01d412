"""Data section: images by class and split, and the images that were skipped."""

from __future__ import annotations

from patchwords.report.format import format_count, pluralise
from patchwords.report.html import (
    Markup,
    html_table,
    join_markup,
    note,
    number_cell,
    section,
    share_bar,
    table_row,
    tag,
)
from patchwords.report.run_data import RunData

MAX_SKIPPED_ROWS = 50  # data.json and evaluation.json have all of them
SPLIT_ROW_ORDER = ("train", "validation", "test")


def render_data(run: RunData) -> Markup:
    """Render images by class and split, notes and skipped images."""
    title = "Data"
    if not run.data:
        unknown = note("There is no data.json, so the data cannot be described.")
        return section(
            "data",
            title,
            unknown,
            render_skipped_images(run) if run.results else None,
        )
    splits = run.data.get("splits", {})
    splits = {name: splits[name] for name in sorted(splits, key=split_rank)}
    classes = run.data.get("classes", [])
    zeros = [0] * len(classes)
    total = sum(split["images"] for split in splits.values())
    fingerprint = (run.environment.get("data") or {}).get("fingerprint")
    lede = tag(
        "p",
        tag("b", run.data.get("source", "unknown source")),
        f" ({run.data.get('kind', 'unknown kind')}): {pluralise(total, 'image')} in "
        f"{pluralise(len(classes), 'class', 'classes') if classes else 'no classes'}.",
        class_="lede",
    )
    largest = max((max(s.get("per_class") or [0]) for s in splits.values()), default=0) or 1
    rows = [
        table_row(
            name,
            *(
                image_count_cell((split.get("per_class") or zeros)[i], largest)
                for split in splits.values()
            ),
        )
        for i, name in enumerate(classes)
    ]
    totals = table_row(
        "All", *(number_cell(format_count(split["images"])) for split in splits.values())
    )
    return section(
        "data",
        title,
        lede,
        html_table(("Class", *splits), rows, [totals], look="classes"),
        tag("ul", *(tag("li", line) for line in run.data.get("notes", [])), class_="notes"),
        render_skipped_images(run),
        note("Fingerprint of the data: ", tag("code", fingerprint), look="small")
        if fingerprint
        else None,
    )


def split_rank(split: str) -> int:
    """Order train, validation and test before other names."""
    return SPLIT_ROW_ORDER.index(split) if split in SPLIT_ROW_ORDER else len(SPLIT_ROW_ORDER)


def image_count_cell(images: int, largest: int) -> Markup:
    return tag(
        "td",
        tag("span", format_count(images)),
        share_bar(images / largest),
        class_="num meter quiet",
    )


def render_skipped_images(run: RunData) -> Markup:
    """List images that could not be read, with the reason."""
    seen = {}
    for row in run.data.get("skipped", []):
        seen[row["path"]] = row
    results = run.results
    for row in results.get("skipped", []):
        seen.setdefault(row["path"], {"split": results.get("split"), **row})
    rows = list(seen.values())
    if not rows:
        return note("No image was skipped.")
    named = [
        tag("tr", tag("td", r["path"]), tag("td", r.get("split")), tag("td", r["reason"]))
        for r in rows[:MAX_SKIPPED_ROWS]
    ]
    more = len(rows) - len(named)
    return join_markup(
        tag("h3", f"{pluralise(len(rows), 'image')} skipped"),
        html_table(("Image", "Split", "Reason"), named, look="paths"),
        note(f"{format_count(more)} more; data.json lists all of them.", look="small")
        if more
        else None,
    )
