"""Charts of the page as inline SVG: lines, interval, confusion matrix, calibration, heads.

Colours are the page's CSS variables, so that dark mode and print follow. Hovering a mark shows its
numbers (<title>); no script is needed. `plots` draws the exported figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from patchwords.data.decode import encode_image_url
from patchwords.report.format import format_count, format_percent, truncate_name
from patchwords.report.html import Content, Markup, join_markup, tag
from patchwords.report.run_data import RunData

MAX_LINE_POINTS = 150  # more rows are averaged in buckets
MAX_MATRIX_CLASSES = 20  # up to which a matrix shows counts
MAX_MATRIX_LABEL_LENGTH = 18  # letters of a class name
MAX_NUMBERED_LAYERS = 12


@dataclass(frozen=True)
class ChartPoint:
    """A point of a line; low and high are the range of the rows that it averages."""

    x: float
    y: float
    low: float
    high: float
    rows: int = 1


@dataclass(frozen=True)
class ChartSeries:
    """A line of a chart; `look` is a colour class of the page: first, second or third."""

    name: str
    points: list[ChartPoint]
    look: str = "first"
    dots: bool = False  # mark each point, for the few rows of evaluations


@dataclass(frozen=True)
class ChartFrame:
    """Mapping of data coordinates to pixels of a chart."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 340
    height: int = 236
    left: int = 48
    right: int = 14
    top: int = 34
    bottom: int = 40

    def x_pixel(self, x: float) -> float:
        """Return the horizontal pixel of a value."""
        share = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return self.left + share * (self.width - self.left - self.right)

    def y_pixel(self, y: float) -> float:
        """Return the vertical pixel of a value."""
        share = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)


def make_series(
    rows: Sequence[dict[str, Any]], key: str, name: str, look: str = "first", dots: bool = False
) -> ChartSeries:
    """Make a line of one column of metrics.jsonl, without values that are not finite."""
    pairs = [
        (float(row["step"]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), (int, float)) and math.isfinite(row[key])
    ]
    # buckets of equal size: larger ones would look smoother for no reason
    size = -(-len(pairs) // MAX_LINE_POINTS) or 1
    buckets = [np.array(pairs[i : i + size]) for i in range(0, len(pairs), size)]
    points = [
        ChartPoint(
            x=float(bucket[:, 0].mean()),
            y=float(bucket[:, 1].mean()),
            low=float(bucket[:, 1].min()),
            high=float(bucket[:, 1].max()),
            rows=len(bucket),
        )
        for bucket in buckets
    ]
    return ChartSeries(name, points, look, dots)


def collect_training_charts(run: RunData) -> list[tuple[str, list[ChartSeries]]]:
    """Collect (title, lines) of each training chart that the run has numbers for."""
    train, evaluations = run.rows("train"), run.rows("evaluation")
    charts = []
    for title, key in (
        ("Loss", "loss"),
        ("Accuracy", "accuracy"),
        ("mIoU", "miou"),
        ("Pixel accuracy", "pixel_accuracy"),
        ("Learning rate", "lr"),
    ):
        lines = [make_series(train, key, "training")]
        for split, look in (("validation", "second"), ("test", "third")):
            rows = [row for row in evaluations if row.get("split", "validation") == split]
            lines.append(make_series(rows, key, split, look, dots=True))
        charts.append((title, [line for line in lines if line.points]))
    probes = run.rows("fewshot")
    name = f"{probes[-1].get('shots')}-shot" if probes else ""
    few = make_series(probes, "accuracy", name, "third", dots=True)
    charts.append(("Few-shot accuracy", [few] if few.points else []))
    return [(title, lines) for title, lines in charts if lines]


def choose_ticks(low: float, high: float, intervals: int = 5) -> list[float]:
    """Choose up to `intervals` + 1 round numbers (1, 2, 2.5, 5 times a power of ten)."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / intervals
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def svg_text(x: float, y: float, content: Content, **attributes: Content) -> Markup:
    """Render a <text> element."""
    return tag("text", content, x=x, y=y, **attributes)


def svg_drawing(
    width: float, height: float, alt: str, *parts: Content, **attributes: Content
) -> Markup:
    """Render an <svg> with a text alternative."""
    box = f"0 0 {width:g} {height:g}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=alt, **attributes)


def line_chart(
    series: Sequence[ChartSeries],
    alt: str,
    format_y: Callable[[float], str],
    ceiling: float | None = None,
    x_label: str = "step",
) -> Markup:
    """Render lines over the training step, or over `x_label`.

    `format_y` formats values of the y axis, `ceiling` is their maximum.
    """
    points = [point for line in series for point in line.points]
    low, high = min(p.low for p in points), max(p.high for p in points)
    bottom = 0.0 if ceiling is None or low < 0.5 * ceiling else math.floor(low * 20) / 20
    top = ceiling if ceiling is not None else (high * 1.05 or 1.0)
    frame = ChartFrame(x=(0.0, max(p.x for p in points) or 1.0), y=(bottom, top))
    parts = [svg_axes(frame, format_y, x_label)]
    for line in series:
        parts += [
            svg_band(frame, line),
            svg_polyline(frame, line),
            *svg_hover_points(frame, line, format_y, x_label),
        ]
    x = float(frame.left)
    for line in series if len(series) > 1 else ():
        parts.append(tag("rect", x=x, y=10.0, width=14, height=4, rx=2, class_=line.look))
        parts.append(svg_text(x + 20, 16.0, line.name, class_="key"))
        x += 34 + 7.2 * len(line.name)
    return svg_drawing(frame.width, frame.height, alt, *parts)


def svg_y_grid(frame: ChartFrame, format_y: Callable[[float], str]) -> list[Markup]:
    """Render horizontal grid lines with their values."""
    end = frame.width - frame.right
    parts = []
    for value in choose_ticks(*frame.y):
        y = frame.y_pixel(value)
        parts.append(tag("line", x1=frame.left, x2=end, y1=y, y2=y, class_="grid"))
        parts.append(svg_text(frame.left - 8, y + 4, format_y(value), class_="end"))
    return parts


def svg_axes(frame: ChartFrame, format_y: Callable[[float], str], x_label: str) -> Markup:
    """Render grid lines and the numbers of both axes."""
    parts = svg_y_grid(frame, format_y)
    floor = frame.height - frame.bottom
    for value in choose_ticks(*frame.x):
        parts.append(svg_text(frame.x_pixel(value), floor + 18, f"{value:,.0f}", class_="middle"))
    end = frame.width - frame.right
    parts.append(svg_text(end, frame.height - 5, x_label, class_="end"))
    return join_markup(*parts)


def svg_band(frame: ChartFrame, line: ChartSeries) -> Markup:
    """Render the range of the rows behind averaged points."""
    if all(point.rows == 1 for point in line.points):
        return Markup("")
    corners = [(p.x, p.high) for p in line.points] + [(p.x, p.low) for p in reversed(line.points)]
    return tag("polygon", points=svg_coordinates(frame, corners), class_=f"band {line.look}")


def svg_polyline(frame: ChartFrame, line: ChartSeries) -> Markup:
    """Render the line itself."""
    points = svg_coordinates(frame, [(point.x, point.y) for point in line.points])
    return tag("polyline", points=points, class_=f"line {line.look}")


def svg_coordinates(frame: ChartFrame, corners: Sequence[tuple[float, float]]) -> str:
    """Format data coordinates as an SVG points attribute."""
    return " ".join(f"{frame.x_pixel(x):.1f},{frame.y_pixel(y):.1f}" for x, y in corners)


def svg_hover_points(
    frame: ChartFrame, line: ChartSeries, format_y: Callable[[float], str], x_label: str
) -> list[Markup]:
    """Render a dot per point, visible or not, that shows its numbers on hovering."""
    look = f"dot {line.look}" if line.dots or len(line.points) == 1 else "unseen"
    return [
        tag(
            "circle",
            tag("title", f"{x_label} {point.x:,.0f}: {line.name} {format_y(point.y)}"),
            cx=frame.x_pixel(point.x),
            cy=frame.y_pixel(point.y),
            r=4 if look != "unseen" else 7,
            class_=look,
        )
        for point in line.points
    ]


def interval_diagram(value: float, low: float, high: float, baseline: float) -> Markup:
    """Render accuracy, its interval and the baseline on a scale from 0 to 100 %."""
    frame = ChartFrame(x=(0, 1), y=(0, 1), width=440, height=92, left=22, right=24)
    end = frame.width - frame.right
    parts = [tag("line", x1=frame.left, x2=end, y1=48, y2=48, class_="track")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = frame.x_pixel(share)
        parts.append(tag("line", x1=x, x2=x, y1=60, y2=65, class_="tick"))
        parts.append(svg_text(x, 82, f"{100 * share:.0f} %", class_="middle"))
    base = frame.x_pixel(baseline)
    parts += [
        tag("line", x1=base, x2=base, y1=34, y2=62, class_="baseline"),
        svg_text(
            base, 24, "most frequent class", class_="middle" if 0.15 < baseline < 0.85 else "key"
        ),
        tag(
            "rect",
            tag("title", f"95 % interval: {format_percent(low)} to {format_percent(high)}"),
            x=frame.x_pixel(low),
            y=38,
            width=max(frame.x_pixel(high) - frame.x_pixel(low), 3.0),
            height=20,
            rx=6,
            class_="range",
        ),
        tag("circle", cx=frame.x_pixel(value), cy=48, r=6, class_="value"),
    ]
    alt = (
        f"Accuracy {format_percent(value)}, 95 % interval {format_percent(low)} to {format_percent(high)}, "
        f"baseline {format_percent(baseline)}, on a scale from 0 to 100 %"
    )
    return svg_drawing(frame.width, frame.height, alt, *parts, class_="interval")


def confusion_heat_map(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Markup:
    """Render the confusion matrix with counts, shaded by the share of the true class."""
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
            title = (
                f"{number} of {total} {name} predicted as {classes[j]} ({format_percent(share)})"
            )
            parts.append(
                heat_map_cell((left + j * size, y), size, number, share, right=i == j, title=title)
            )
    right = left + len(classes) * size + 5.0 * longest
    alt = (
        f"Confusion matrix of {len(classes)} classes: rows are true, columns are predicted classes"
    )
    height = top + len(classes) * size + 8
    parts.append(svg_text(0, top - 10, "true ↓  predicted →", class_="key"))
    return svg_drawing(
        right,
        height,
        alt,
        *parts,
        style=f"max-width:{1.15 * right:.0f}px;min-width:{0.7 * right:.0f}px",
        class_="matrix",
    )


def heat_map_cell(
    corner: tuple[float, float], size: float, number: int, share: float, *, right: bool, title: str
) -> Markup:
    """Render one cell of the matrix."""
    x, y = corner
    look = "right" if right else "wrong"
    # the square root makes rare mistakes visible next to a diagonal near 1
    strength = share if right else share**0.5
    shape = {"x": x + 1, "y": y + 1, "width": size - 2, "height": size - 2, "rx": 4}
    return tag(
        "g",
        tag("title", title),
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
    """Encode a confusion matrix of many classes as a PNG data URL, a pixel per cell.

    Its opacity is the share of the row, so it fits a light and a dark page.
    """
    matrix = np.asarray(confusion, dtype=float)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    pixels = np.zeros((*matrix.shape, 4), dtype=np.uint8)
    pixels[..., :3] = (217, 104, 30)
    pixels[np.eye(len(matrix), dtype=bool), :3] = (38, 155, 141)
    pixels[..., 3] = np.round(255 * np.sqrt(share))
    return encode_image_url(Image.fromarray(pixels), lossless=True)


def reliability_diagram(bins: Sequence[dict[str, Any]]) -> Markup:
    """Render the accuracy of each confidence bin, the diagonal, and the images per bin."""
    frame = ChartFrame(
        x=(0, 1), y=(0, 1), width=460, height=420, left=56, right=24, top=16, bottom=138
    )
    floor, end = frame.y_pixel(0), frame.width - frame.right
    parts = svg_y_grid(frame, lambda value: f"{100 * value:.0f} %")
    for value in choose_ticks(0, 1):
        parts.append(svg_text(frame.x_pixel(value), 404, f"{100 * value:.0f} %", class_="middle"))
    largest = max((b["count"] for b in bins), default=0) or 1
    for b in bins:
        if not b["count"]:
            continue
        x = frame.x_pixel(b["low"]) + 1
        width = frame.x_pixel(b["high"]) - x - 1
        title = (
            f"{format_count(b['count'])} images: mean confidence {format_percent(b['confidence'])}, "
            f"accuracy {format_percent(b['accuracy'])}"
        )
        top, count_height = frame.y_pixel(b["accuracy"]), 70 * b["count"] / largest
        few = " few" if b["count"] < 10 else ""
        parts.append(
            tag(
                "g",
                tag("title", title),
                tag("rect", x=x, y=top, width=width, height=floor - top, rx=2, class_=f"bar{few}"),
                tag(
                    "rect",
                    x=x,
                    y=386 - count_height,
                    width=width,
                    height=count_height,
                    rx=1,
                    class_="quiet",
                ),
                tag(
                    "circle", cx=frame.x_pixel(b["confidence"]), cy=top, r=3.5, class_="dot second"
                ),
            )
        )
    parts += [
        tag("line", x1=frame.left, y1=floor, x2=end, y2=frame.y_pixel(1), class_="diagonal"),
        tag("line", x1=frame.left, x2=end, y1=386, y2=386, class_="grid"),
        svg_text(frame.left + 4, 306, "images per bin", class_="key"),
        svg_text(frame.left + 8, 30, "accuracy", class_="key"),
        svg_text(end, 418, "confidence", class_="end key"),
    ]
    alt = "Reliability diagram: accuracy against confidence"
    return svg_drawing(frame.width, 424, alt, *parts)


def head_distance_chart(distance: dict[str, Any]) -> Markup:
    """Render a dot for every head from `distance` of insight.json."""
    pixels, errors = distance["pixels"], distance["standard_error"]
    uniform = float(distance["uniform"])
    layers, top = len(pixels), max(*map(max, pixels), uniform) * 1.1 or 1.0
    frame = ChartFrame((-0.5, layers - 0.5), (0.0, top), width=520, height=250, top=14)
    end = frame.width - frame.right
    parts = svg_y_grid(frame, lambda value: f"{value:g}")
    floor = frame.height - frame.bottom
    for layer in range(0, layers, -(-layers // MAX_NUMBERED_LAYERS)):
        parts.append(svg_text(frame.x_pixel(layer), floor + 18, layer, class_="middle"))
    parts.append(svg_text(end, frame.height - 5, "layer; y axis in pixels", class_="end"))
    y = frame.y_pixel(uniform)
    parts.append(tag("line", x1=frame.left, x2=end, y1=y, y2=y, class_="diagonal"))
    for layer, (row, spread) in enumerate(zip(pixels, errors, strict=True)):
        offsets = np.linspace(-0.3, 0.3, len(row)) if len(row) > 1 else [0.0]
        for head, (x, value, error) in enumerate(zip(offsets, row, spread, strict=True)):
            title = f"layer {layer}, head {head}: {value:.3g} pixels, standard error {error:.2g}"
            dot = tag(
                "circle",
                tag("title", title),
                cx=frame.x_pixel(layer + float(x)),
                cy=frame.y_pixel(value),
                r=4,
                class_="dot first",
            )
            parts.append(dot)
    first = f"{min(pixels[0]):.3g} to {max(pixels[0]):.3g} in the first layer"
    alt = f"Attention distance of every head, {first}, uniform attention {uniform:.3g} pixels"
    return svg_drawing(frame.width, frame.height, alt, *parts)
