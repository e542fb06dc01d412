"""The diagrams of the results as inline SVG: the interval, the confusion matrix, calibration."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from patchwords.report.charts import ChartFrame, choose_ticks, svg_drawing, svg_text
from patchwords.report.html import Markup, join_markup, tag
from patchwords.report.words import format_count, format_percent, truncate_name

MAX_MATRIX_CLASSES = 20  # classes whose counts can be read in a drawn matrix
MAX_MATRIX_LABEL_LENGTH = 18  # letters of a class name beside a matrix


def interval_diagram(value: float, low: float, high: float, baseline: float) -> Markup:
    """Accuracy, its interval and the baseline on a scale from 0 to 100 %."""
    frame = ChartFrame(x=(0, 1), y=(0, 1), width=440, height=92, left=22, right=24)
    end = frame.width - frame.right
    parts = [tag("line", x1=frame.left, x2=end, y1=48, y2=48, class_="track")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = frame.across(share)
        parts.append(tag("line", x1=x, x2=x, y1=60, y2=65, class_="tick"))
        parts.append(svg_text(x, 82, f"{100 * share:.0f} %", class_="middle"))
    base = frame.across(baseline)
    parts += [
        tag("line", x1=base, x2=base, y1=34, y2=62, class_="baseline"),
        svg_text(base, 24, "commonest class", class_="middle" if 0.15 < baseline < 0.85 else "key"),
        tag(
            "rect",
            tag("title", f"95 % interval: {format_percent(low)} to {format_percent(high)}"),
            x=frame.across(low),
            y=38,
            width=max(frame.across(high) - frame.across(low), 3.0),
            height=20,
            rx=6,
            class_="range",
        ),
        tag("circle", cx=frame.across(value), cy=48, r=6, class_="value"),
    ]
    alt = (
        f"Accuracy {format_percent(value)}, 95 % interval {format_percent(low)} to {format_percent(high)}, "
        f"baseline {format_percent(baseline)}, on a scale from 0 to 100 %"
    )
    return svg_drawing(frame.width, frame.height, alt, *parts, class_="interval")


def confusion_heat_map(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Markup:
    """The confusion matrix with its counts; rows are true classes, shaded by share of the row."""
    size = 62 if len(classes) <= 6 else 56 if len(classes) <= 10 else 38
    longest = min(max(len(name) for name in classes), MAX_MATRIX_LABEL_LENGTH)
    left, top = max(30 + 7.5 * longest, 110.0), 40 + 5.6 * longest
    parts = []
    for i, (name, row) in enumerate(zip(classes, confusion, strict=True)):
        y, total = top + i * size, sum(row)
        full = tag("title", name)
        short = truncate_name(name, MAX_MATRIX_LABEL_LENGTH)
        parts.append(
            svg_text(left - 10, y + size / 2 + 4, join_markup(short, full), class_="end name")
        )
        turn = f"translate({left + (i + 0.5) * size + 3:.1f} {top - 10:.1f}) rotate(-40)"
        parts.append(tag("text", short, full, transform=turn, class_="name"))
        for j, number in enumerate(row):
            share = number / total if total else 0.0
            told = f"{number} of {total} {name} predicted as {classes[j]} ({format_percent(share)})"
            parts.append(
                heat_map_cell((left + j * size, y), size, number, share, right=i == j, told=told)
            )
    right = left + len(classes) * size + 5.0 * longest
    alt = (
        f"Confusion matrix of {len(classes)} classes: rows are true, columns are predicted classes"
    )
    height = top + len(classes) * size + 8
    parts.append(svg_text(0, top - 10, "true ↓  answer →", class_="key"))
    return svg_drawing(
        right,
        height,
        alt,
        *parts,
        style=f"max-width:{1.15 * right:.0f}px;min-width:{0.7 * right:.0f}px",
        class_="matrix",
    )


def heat_map_cell(
    corner: tuple[float, float], size: float, number: int, share: float, *, right: bool, told: str
) -> Markup:
    x, y = corner
    look = "right" if right else "wrong"
    # a square root makes the rare mistakes visible beside a diagonal near 1
    strength = share if right else share**0.5
    shape = {"x": x + 1, "y": y + 1, "width": size - 2, "height": size - 2, "rx": 4}
    return tag(
        "g",
        tag("title", told),
        tag("rect", **shape, class_="empty"),
        tag("rect", **shape, class_=look, fill_opacity=strength) if number else None,
        svg_text(
            x + size / 2,
            y + size / 2 + 5,
            format_count(number),
            class_="middle" if number else "middle nil",
        ),
    )


def confusion_pixel_map(confusion: Sequence[Sequence[int]]) -> str:
    """A confusion matrix of many classes as a PNG data URI, a pixel per cell.

    Its colour is see-through by the share of the row, so it fits a light and a dark page.
    """
    from PIL import Image

    matrix = np.asarray(confusion, dtype=float)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    pixels = np.zeros((*matrix.shape, 4), dtype=np.uint8)
    pixels[..., :3] = (217, 104, 30)
    pixels[np.eye(len(matrix), dtype=bool), :3] = (38, 155, 141)
    pixels[..., 3] = np.round(255 * np.sqrt(share))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def reliability_diagram(bins: Sequence[dict[str, Any]]) -> Markup:
    """Accuracy of each confidence bin against the diagonal, and how many images are in it."""
    frame = ChartFrame(
        x=(0, 1), y=(0, 1), width=460, height=420, left=56, right=24, top=16, bottom=138
    )
    floor, end = frame.down(0), frame.width - frame.right
    parts = []
    for value in choose_ticks(0, 1):
        y = frame.down(value)
        parts.append(tag("line", x1=frame.left, x2=end, y1=y, y2=y, class_="grid"))
        parts.append(svg_text(frame.left - 8, y + 4, f"{100 * value:.0f} %", class_="end"))
        parts.append(svg_text(frame.across(value), 404, f"{100 * value:.0f} %", class_="middle"))
    most = max((b["count"] for b in bins), default=0) or 1
    for b in bins:
        if not b["count"]:
            continue
        x, width = frame.across(b["low"]) + 1, frame.across(b["high"]) - frame.across(b["low"]) - 2
        told = (
            f"{format_count(b['count'])} images, {format_percent(b['confidence'])} sure on average: "
            f"{format_percent(b['accuracy'])} right"
        )
        top, tall = frame.down(b["accuracy"]), 70 * b["count"] / most
        few = " few" if b["count"] < 10 else ""
        parts.append(
            tag(
                "g",
                tag("title", told),
                tag("rect", x=x, y=top, width=width, height=floor - top, rx=2, class_=f"bar{few}"),
                tag("rect", x=x, y=386 - tall, width=width, height=tall, rx=1, class_="quiet"),
                tag("circle", cx=frame.across(b["confidence"]), cy=top, r=3.5, class_="dot second"),
            )
        )
    parts += [
        tag("line", x1=frame.left, y1=floor, x2=end, y2=frame.down(1), class_="diagonal"),
        tag("line", x1=frame.left, x2=end, y1=386, y2=386, class_="grid"),
        svg_text(frame.left + 4, 306, "images per bin", class_="key"),
        svg_text(frame.left + 8, 30, "accuracy", class_="key"),
        svg_text(end, 418, "confidence", class_="end key"),
    ]
    alt = "Reliability diagram: accuracy of the answers against the confidence that they had"
    return svg_drawing(frame.width, 424, alt, *parts)
