"""The section on the data: images per class and split, and what was left aside and why."""

from __future__ import annotations

from patchwords.report.blocks import bar, note, number, row_of, section, table
from patchwords.report.html import Markup, join, tag
from patchwords.report.run import Run
from patchwords.report.words import count, plural

MOST_SKIPPED = 50  # images that are named; data.json and evaluation.json have them all
SPLITS = ("train", "validation", "test")


def data(run: Run) -> Markup:
    """Images per class and split, and what was left aside and why."""
    title = "The data"
    if not run.data:
        unknown = note("There is no data.json to describe the data by.")
        return section(
            "data", title, unknown, skipped(run) if run.evaluation or run.masked else None
        )
    found = run.data.get("splits", {})
    splits = {name: found[name] for name in sorted(found, key=place_of)}
    classes = run.data.get("classes", [])
    zeros = [0] * len(classes)
    total = sum(split["images"] for split in splits.values())
    fingerprint = (run.environment.get("data") or {}).get("fingerprint")
    lede = tag(
        "p",
        tag("b", run.data.get("source", "unknown source")),
        f" ({run.data.get('kind', 'unknown kind')}): {plural(total, 'image')} in "
        f"{plural(len(classes), 'class', 'classes') if classes else 'no classes'}.",
        class_="lede",
    )
    most = max((max(s.get("per_class") or [0]) for s in splits.values()), default=0) or 1
    rows = [
        row_of(
            name, *(amount((split.get("per_class") or zeros)[i], most) for split in splits.values())
        )
        for i, name in enumerate(classes)
    ]
    totals = row_of("All", *(number(count(split["images"])) for split in splits.values()))
    return section(
        "data",
        title,
        lede,
        table(("Class", *splits), rows, [totals], look="classes"),
        tag("ul", *(tag("li", line) for line in run.data.get("notes", [])), class_="notes"),
        skipped(run),
        note("Fingerprint of the data: ", tag("code", fingerprint), look="small")
        if fingerprint
        else None,
    )


def place_of(split: str) -> int:
    """Train, validation, test; then what an evaluation calls its images."""
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


def amount(images: int, most: int) -> Markup:
    return tag("td", tag("span", count(images)), bar(images / most), class_="num meter quiet")


def skipped(run: Run) -> Markup:
    """Images that could not be read: named, with the reason, never replaced by others."""
    seen = {}
    for row in run.data.get("skipped", []):
        seen[row["path"]] = row
    results = run.evaluation or run.masked
    for row in results.get("skipped", []):
        seen.setdefault(row["path"], {"split": results.get("split"), **row})
    rows = list(seen.values())
    if not rows:
        return note("No image was skipped.")
    named = [
        tag("tr", tag("td", r["path"]), tag("td", r.get("split")), tag("td", r["reason"]))
        for r in rows[:MOST_SKIPPED]
    ]
    more = len(rows) - len(named)
    return join(
        tag("h3", f"{plural(len(rows), 'image')} skipped"),
        table(("Image", "Split", "Reason"), named, look="paths"),
        note(f"And {count(more)} more; data.json names them all.", look="small") if more else None,
    )
