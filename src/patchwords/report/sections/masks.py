"""Sections of a segmentation run: mIoU, IoU of each class, overlays, what is confused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from patchwords.data.decode import encode_image_url
from patchwords.report.figures.svg import interval_diagram
from patchwords.report.format import RANGE_DASH, format_percent, pluralise
from patchwords.report.html import (
    Content,
    Markup,
    html_table,
    meter_cell,
    note,
    number_cell,
    section,
    table_row,
    tag,
)
from patchwords.report.run_data import RunData
from patchwords.report.sections.headline import (
    render_baseline_warning,
    render_key_facts,
    render_split_note,
)

MASK_PAGE_CONTENTS = {
    "results": "Results",
    "curves": "Training",
    "classes": "Classes",
    "confusion": "Confusion",
    "photos": "Photos",
    "data": "Data",
    "settings": "Settings",
    "reading": "How to read this",
}
PICTURE_PANELS = {  # picture -> what it shows
    "photo": "the photo",
    "truth": "its mask",
    "answer": "the answer",
}
KIND_TITLES = {"worst": "Worst photos", "best": "Best photos"}
MAX_CONFUSED_PAIRS = 10


def render_mask_headline(run: RunData) -> Markup:
    """Render mIoU with its interval, the images it was measured on, and the baseline."""
    results = run.masks
    miou, split = results["miou"], results.get("split", "held-out")
    number, unit = format_percent(miou["value"]).split()
    score = tag(
        "div",
        tag("p", f"mIoU on the {split} images", class_="eyebrow"),
        tag("p", number, tag("span", f" {unit}"), class_="score"),
        tag("p", f"95 % interval {format_percent(miou['low'])} to {format_percent(miou['high'])}"),
    )
    accuracy = results["pixel_accuracy"]
    story = tag(
        "div",
        interval_diagram(miou["value"], miou["low"], miou["high"], results["baseline"]),
        tag(
            "p",
            tag("b", f"{format_percent(accuracy['value'])} of the pixels right. "),
            f"The mean over {pluralise(len(results['per_class']), 'class', 'classes')} of "
            f"intersection over union, of {pluralise(results['images'], 'photo')}. Always answering "
            f"the most frequent class would have {format_percent(results['baseline'])}.",
        ),
        render_split_note(split, bool(results.get("selected")), results.get("trained_on", False)),
        render_baseline_warning(miou["low"], results["baseline"]),
    )
    return tag(
        "section",
        tag("div", score, story, class_="top"),
        render_key_facts(run),
        class_="hero",
        id="results",
    )


def render_mask_classes(run: RunData) -> Markup:
    """Render IoU, precision, recall and share of the pixels of each class."""
    results = run.masks
    known = [row for row in results["per_class"] if row["iou"] is not None]
    worst = sorted(known, key=lambda row: row["iou"])[: 3 if len(known) > 5 else 1]
    named = ", ".join(f"{row['class']} ({format_percent(row['iou'])})" for row in worst)
    rows = [
        table_row(
            tag("span", render_swatch(colour), row["class"]),
            meter_cell(row["iou"], render_iou_interval(row)),
            meter_cell(row["precision"]),
            meter_cell(row["recall"]),
            number_cell(format_percent(row["share"])),
        )
        for row, colour in zip(results["per_class"], results["palette"], strict=True)
    ]
    return section(
        "classes",
        "Classes",
        tag("p", f"Lowest IoU: {named}.", class_="lede"),
        html_table(("Class", "IoU", "Precision", "Recall", "Pixels"), rows, look="classes scores"),
        note(
            tag("b", "IoU"),
            ": the pixels that both mask and answer give to the class, over those that either "
            "does (with its 95 % interval). ",
            tag("b", "Precision"),
            ": the share of the pixels answered with the class that have it. ",
            tag("b", "Recall"),
            ": the share of the pixels of the class that were answered with it. ",
            tag("b", "Pixels"),
            ": the share of all labelled pixels.",
            look="small",
        ),
    )


def render_swatch(colour: list[int]) -> Markup:
    """Render the colour of a class as a small square."""
    red, green, blue = (int(value) for value in colour)
    style = f"background:rgb({red} {green} {blue});display:inline-block;width:.8em;height:.8em"
    return tag("span", style=f"{style};border-radius:2px;margin-right:.5em")


def render_iou_interval(row: dict[str, Any]) -> Content:
    if row["iou_low"] is None:
        return None
    text = f"{100 * row['iou_low']:.0f}{RANGE_DASH}{100 * row['iou_high']:.0f}"
    return tag("small", text, title="95 % interval of IoU")


def render_mask_confusion(run: RunData) -> Markup:
    """Render which classes are taken for which, by pixels."""
    results = run.masks
    counts = np.array(results["confusion"], dtype=np.float64)  # [K, K] true, predicted
    names = results["classes"]
    totals = counts.sum(1)
    wrong = counts - np.diag(counts.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSED_PAIRS]
    pairs = [divmod(int(place), len(names)) for place in order]
    rows = [
        tag(
            "tr",
            tag("td", names[i]),
            tag("td", names[j]),
            meter_cell(float(wrong[i, j] / totals[i])),
            number_cell(format_percent(float(wrong[i, j] / counts.sum()))),
        )
        for i, j in pairs
        if wrong[i, j]
    ]
    if not rows:
        return section("confusion", "Confusion", note("No pixel was answered with another class."))
    head = ("True class", "Answered with", "Of the class", "Of all pixels")
    lede = tag("p", "The most frequent mistakes, by their number of pixels.", class_="lede")
    return section("confusion", "Confusion", lede, html_table(head, rows, look="paths"))


def render_mask_pictures(run: RunData) -> Markup:
    """Render the worst and the best photos with mask and answer laid over."""
    parts: list[Content] = []
    for kind, title in KIND_TITLES.items():
        chosen = [row for row in run.masks.get("pictures", []) if row["kind"] == kind]
        strips = [render_picture_strip(run.folder, row) for row in chosen]
        shown = [strip for strip in strips if strip is not None]
        if shown:
            parts += [tag("h3", title), tag("div", *shown, class_="strips")]
    if not parts:
        return section("photos", "Photos", note("The pictures in overlays/ are missing."))
    lede = tag(
        "p",
        "By the mIoU of the photo itself, over the classes in it. Left: the photo; middle: its mask; "
        "right: the answer. Colours are those of the table above.",
        class_="lede",
    )
    return section("photos", "Photos", lede, *parts)


def render_picture_strip(folder: Path, row: dict[str, Any]) -> Markup | None:
    """Render photo, mask and answer in a row, with the mIoU of the photo."""
    files = [folder / str(row.get(name)) for name in PICTURE_PANELS]
    if not all(file.is_file() for file in files):
        return None
    images = []
    for file, what in zip(files, PICTURE_PANELS.values(), strict=True):
        with Image.open(file) as image:
            source = encode_image_url(image.convert("RGB"))
        images.append(tag("img", src=source, alt=f"{row['path']}: {what}"))
    caption = tag(
        "figcaption",
        tag("span", row["path"]),
        tag("small", f"mIoU {format_percent(row['miou'])}"),
    )
    return tag("figure", tag("div", *images), caption, title=row["path"], class_="strip")


def render_mask_reading_guide(run: RunData) -> Markup:
    """Explain what the numbers mean and what they do not show."""
    points: list[Content] = [
        "mIoU comes from one confusion matrix over all pixels of the split, at the photos' own size; "
        "pixels without a label do not count. A class counts as much as any other, however small.",
        "The interval is from resampling photos. Photos that resemble one another, as the frames of "
        "a video do, hold less than their number says: it is then too narrow.",
        "IoU punishes a mistake twice, as a missing pixel of one class and a false pixel of another. "
        "Thin classes lose most at their borders, where masks themselves differ by a pixel or two.",
    ]
    return section("reading", "How to read this", tag("ul", *(tag("li", p) for p in points)))
