"""Line charts as inline SVG, coloured by the page's CSS variables, so that dark mode and print
follow. Hovering a point shows its numbers (<title>); no script is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchwords.report.html import Content, Markup, join_markup, tag
from patchwords.report.run import RunData

MAX_LINE_POINTS = 150  # of a line; more rows are averaged in buckets


@dataclass(frozen=True)
class ChartPoint:
    """A place on a line; low and high are the extremes of the rows that it stands for."""

    x: float
    y: float
    low: float
    high: float
    rows: int = 1


@dataclass(frozen=True)
class ChartSeries:
    """A line of a chart. Look: "first" and "second" are the page's two colours."""

    name: str
    points: list[ChartPoint]
    look: str = "first"
    dots: bool = False  # mark each point: for the few rows of an evaluation


@dataclass(frozen=True)
class ChartFrame:
    """Data coordinates -> pixels of a chart."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 340
    height: int = 236
    left: int = 48
    right: int = 14
    top: int = 34
    bottom: int = 40

    def across(self, x: float) -> float:
        share = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return self.left + share * (self.width - self.left - self.right)

    def down(self, y: float) -> float:
        share = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)


def make_series(
    rows: Sequence[dict[str, Any]], key: str, name: str, look: str = "first", dots: bool = False
) -> ChartSeries:
    """One column of metrics.jsonl as a line; rows without a finite value are left out."""
    pairs = [
        (float(row["step"]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), (int, float)) and math.isfinite(row[key])
    ]
    # buckets of one size: where they differed, the line would look calmer for no reason
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
    """(title, lines) of each chart of the training that the run has numbers for."""
    train, evaluations = run.rows("train"), run.rows("evaluation")
    charts = []
    for title, key in (("Loss", "loss"), ("Accuracy", "accuracy"), ("Learning rate", "lr")):
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


def choose_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` + 1 round numbers (1, 2, 2.5 or 5 times a power of ten) within the range."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def svg_text(x: float, y: float, content: Content, **attributes: Content) -> Markup:
    return tag("text", content, x=x, y=y, **attributes)


def svg_drawing(
    width: float, height: float, alt: str, *parts: Content, **attributes: Content
) -> Markup:
    """An <svg> that says in words what it shows."""
    box = f"0 0 {width:g} {height:g}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=alt, **attributes)


def line_chart(
    series: Sequence[ChartSeries],
    alt: str,
    show: Callable[[float], str],
    ceiling: float | None = None,
    over: str = "step",
) -> Markup:
    """Lines over the training step, or whatever `over` names.

    `show` writes a value of the y axis, which `ceiling` caps.
    """
    points = [point for line in series for point in line.points]
    low, high = min(p.low for p in points), max(p.high for p in points)
    bottom = 0.0 if ceiling is None or low < 0.5 * ceiling else math.floor(low * 20) / 20
    top = ceiling if ceiling is not None else (high * 1.05 or 1.0)
    frame = ChartFrame(x=(0.0, max(p.x for p in points) or 1.0), y=(bottom, top))
    parts = [svg_axes(frame, show, over)]
    for line in series:
        parts += [
            svg_band(frame, line),
            svg_polyline(frame, line),
            *svg_hover_points(frame, line, show, over),
        ]
    place = float(frame.left)
    for line in series if len(series) > 1 else ():
        parts.append(tag("rect", x=place, y=10.0, width=14, height=4, rx=2, class_=line.look))
        parts.append(svg_text(place + 20, 16.0, line.name, class_="key"))
        place += 34 + 7.2 * len(line.name)
    return svg_drawing(frame.width, frame.height, alt, *parts)


def svg_axes(frame: ChartFrame, show: Callable[[float], str], over: str) -> Markup:
    """Grid lines and numbers."""
    end = frame.width - frame.right
    parts = []
    for value in choose_ticks(*frame.y):
        y = frame.down(value)
        parts.append(tag("line", x1=frame.left, x2=end, y1=y, y2=y, class_="grid"))
        parts.append(svg_text(frame.left - 8, y + 4, show(value), class_="end"))
    floor = frame.height - frame.bottom
    for value in choose_ticks(*frame.x):
        parts.append(svg_text(frame.across(value), floor + 18, f"{value:,.0f}", class_="middle"))
    parts.append(svg_text(end, frame.height - 5, over, class_="end"))
    return join_markup(*parts)


def svg_band(frame: ChartFrame, line: ChartSeries) -> Markup:
    """The spread of the rows behind averaged points."""
    if all(point.rows == 1 for point in line.points):
        return Markup("")
    corners = [(p.x, p.high) for p in line.points] + [(p.x, p.low) for p in reversed(line.points)]
    return tag("polygon", points=svg_coordinates(frame, corners), class_=f"band {line.look}")


def svg_polyline(frame: ChartFrame, line: ChartSeries) -> Markup:
    where = svg_coordinates(frame, [(point.x, point.y) for point in line.points])
    return tag("polyline", points=where, class_=f"line {line.look}")


def svg_coordinates(frame: ChartFrame, corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{frame.across(x):.1f},{frame.down(y):.1f}" for x, y in corners)


def svg_hover_points(
    frame: ChartFrame, line: ChartSeries, show: Callable[[float], str], over: str
) -> list[Markup]:
    """A dot per point, drawn or unseen, that tells its numbers."""
    look = f"dot {line.look}" if line.dots or len(line.points) == 1 else "unseen"
    return [
        tag(
            "circle",
            tag("title", f"{over} {point.x:,.0f}: {line.name} {show(point.y)}"),
            cx=frame.across(point.x),
            cy=frame.down(point.y),
            r=4 if look != "unseen" else 7,
            class_=look,
        )
        for point in line.points
    ]
