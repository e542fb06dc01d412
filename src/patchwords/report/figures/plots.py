"""Exported figures by matplotlib, as PNG and SVG: line panels, dot plots, and a run's charts.

Lines differ by colour (Okabe and Ito's, made for colour-blind readers), dash and marker, so that
they stay distinct in grey. The same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.report.figures.svg import MAX_MATRIX_CLASSES, ChartSeries, collect_training_charts
from patchwords.report.format import format_percent, truncate_name
from patchwords.report.html import replace_surrogates
from patchwords.report.run_data import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FigureFiles = dict[str, bytes]  # file name -> content
FIGURE_DPI = 150
# colour, marker, dash
LINE_STYLES = (
    ("#0072b2", "o", "-"),
    ("#d55e00", "s", "--"),
    ("#009e73", "^", "-."),
    ("#cc79a7", "D", ":"),
    ("#000000", "v", "-"),
    ("#e69f00", "P", "--"),
    ("#56b4e9", "X", "-."),
    ("#999999", "*", ":"),
)
# inches
PANEL_WIDTH, PANEL_HEIGHT = 4.4, 3.3
DOT_PLOT_WIDTH, DOT_PLOT_ROW_HEIGHT = 6.4, 0.26
CAPTION_LINE_HEIGHT = 0.155
CAPTION_LETTERS_PER_INCH = 15.5
MAX_PANELS_PER_ROW = 3


def new_figure(width: float, height: float) -> Figure:
    """Create a figure without pyplot, whose global state would stay in the caller's program."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes: Axes) -> None:
    """Apply the common style: no upper and right spine, a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def escape_mathtext(text: str) -> str:
    """Escape dollar signs, which would start mathematics."""
    return text.replace("$", r"\$")


def format_class_name(name: str, length: int) -> str:
    """Prepare a class name for an axis: printable, short, without mathematics."""
    return escape_mathtext(truncate_name(replace_surrogates(name), length))


def wrap_caption(caption: str, width: float) -> list[str]:
    """Wrap a caption into lines for a figure of `width` inches."""
    return textwrap.wrap(escape_mathtext(caption), int(CAPTION_LETTERS_PER_INCH * width))


def save_figure(figure: Figure, name: str) -> FigureFiles:
    """Encode a figure as NAME.png and NAME.svg, without date and version."""
    import matplotlib

    files = {}
    with matplotlib.rc_context({"svg.hashsalt": "patchwords"}), warnings.catch_warnings():
        # names in letters that the font lacks are drawn as boxes; the page shows them correctly
        warnings.filterwarnings("ignore", message="Glyph")
        for kind, field in (("png", "Software"), ("svg", "Date")):
            file = io.BytesIO()
            figure.savefig(file, format=kind, dpi=FIGURE_DPI, metadata={field: None})
            files[f"{name}.{kind}"] = file.getvalue()
    return files


def save_captioned_figure(figure: Figure, caption: str, name: str) -> FigureFiles:
    """Add a caption below the figure, in as many lines as it needs, and encode it."""
    width, height = figure.get_size_inches()
    lines = wrap_caption(caption, width)
    figure.set_size_inches(width, height + CAPTION_LINE_HEIGHT * (len(lines) + 1))
    figure.supxlabel("\n".join(lines), fontsize=8, x=0.01, ha="left")
    return save_figure(figure, name)


@dataclass(frozen=True)
class Curve:
    """A line, or only its points; `low` and `high` are drawn as a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    line: bool = True
    markers: bool = True


@dataclass(frozen=True)
class Panel:
    """One diagram of a figure; `x_ticks` default to matplotlib's choice."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[float] | None = None


def draw_panels(panels: Sequence[Panel], caption: str, name: str = "curves") -> FigureFiles:
    """Draw panels in rows of up to three: NAME.png and NAME.svg."""
    columns = min(MAX_PANELS_PER_ROW, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(PANEL_WIDTH * columns, PANEL_HEIGHT * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes, panel in zip(grid, panels, strict=False):
        draw_panel(axes, panel)
    for axes in list(figure.axes)[len(panels) :]:
        axes.set_axis_off()
    return save_captioned_figure(figure, caption, name)


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw one panel."""
    for i, curve in enumerate(panel.curves):
        colour, marker, dash = LINE_STYLES[i % len(LINE_STYLES)]
        axes.plot(
            curve.x,
            curve.y,
            color=colour,
            marker=marker if curve.markers else None,
            linestyle=dash if curve.line else "none",
            markersize=4,
            label=escape_mathtext(curve.label),
        )
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, lw=0)
    axes.set(
        title=escape_mathtext(panel.title),
        xlabel=escape_mathtext(panel.x_label),
        ylabel=escape_mathtext(panel.y_label),
    )
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    if panel.x_ticks is not None:
        axes.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axes.minorticks_off()
    style_axes(axes)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, fontsize=8)


def mean_with_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over the rows of [n, S], and its standard error; 0 for a single row."""
    n = len(values)
    values = values.astype(np.float64)
    error = values.std(axis=0, ddof=1) / n**0.5 if n > 1 else np.zeros(values.shape[1])
    return values.mean(axis=0), error


@dataclass(frozen=True)
class DotSeries:
    """One value for each name; `low` and `high` are drawn as a line through it."""

    label: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def draw_dot_plot(
    names: Sequence[str], series: Sequence[DotSeries], x_label: str, caption: str, name: str
) -> FigureFiles:
    """Draw a row of dots for each name, the first on top: NAME.png and NAME.svg."""
    figure = new_figure(DOT_PLOT_WIDTH, 1.0 + DOT_PLOT_ROW_HEIGHT * len(names))
    axes = figure.subplots()
    rows = range(len(names), 0, -1)
    for i, dots in enumerate(series):
        colour, marker, _ = LINE_STYLES[i % len(LINE_STYLES)]
        fill = colour if i == 0 else "none"  # only the first is filled: it stands out
        axes.plot(dots.values, rows, marker, color=colour, markerfacecolor=fill, label=dots.label)
        if dots.low is not None and dots.high is not None:
            axes.hlines(rows, dots.low, dots.high, color=colour)
    axes.set_yticks(rows, [escape_mathtext(row_name) for row_name in names])
    axes.set(xlabel=x_label, ylim=(0.4, len(names) + 0.6))
    style_axes(axes)
    figure.legend(loc="outside upper left", frameon=False, fontsize=8, ncols=2)
    return save_captioned_figure(figure, caption, name)


def draw_run_figures(run: RunData) -> FigureFiles:
    """Draw the charts of the report for slides and papers, as far as the run has the numbers."""
    files: FigureFiles = {}
    if charts := collect_training_charts(run):
        panels = [
            Panel(title, "step", title.lower(), [make_training_curve(line) for line in lines])
            for title, lines in charts
        ]
        files |= draw_panels(panels, "By training step; training values are means of log rows.")
    if run.evaluation:
        files |= save_figure(draw_confusion_matrix(run.evaluation), "confusion")
        files |= save_figure(draw_reliability(run.evaluation), "calibration")
    return files


def make_training_curve(line: ChartSeries) -> Curve:
    """Convert a line of the page's charts."""
    points = line.points
    markers = line.dots or len(points) == 1
    return Curve(line.name, [p.x for p in points], [p.y for p in points], markers=markers)


def draw_confusion_matrix(results: dict[str, Any]) -> Figure:
    """Draw the matrix shaded by the share of the row, with counts for up to 20 classes."""
    counts = np.array(results["confusion"])
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [format_class_name(row["class"], 24) for row in results["per_class"]]
    readable = len(names) <= MAX_MATRIX_CLASSES
    side = max(4.0, 1.6 + 0.5 * len(names)) if readable else 8.0
    figure = new_figure(side + 0.8, side)
    axes = figure.subplots()
    image = axes.imshow(share, cmap="BuGn", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title="Confusion matrix")
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    if readable:
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
        axes.set_yticks(range(len(names)), names)
        for (i, j), number in np.ndenumerate(counts):
            colour = "white" if share[i, j] > 0.6 else "black"
            axes.text(j, i, str(number), ha="center", va="center", color=colour, fontsize=9)
    return figure


def draw_reliability(results: dict[str, Any]) -> Figure:
    """Draw accuracy against confidence, and the number of images in each bin."""
    bins = [b for b in results["calibration"]["bins"] if b["count"]]
    low = np.array([b["low"] for b in bins])
    width = 0.92 * (np.array([b["high"] for b in bins]) - low)
    accuracy = [b["accuracy"] for b in bins]
    (bar_colour, *_), (dot_colour, *_) = LINE_STYLES[:2]
    figure = new_figure(4.6, 5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.bar(low, accuracy, width, align="edge", color=bar_colour, alpha=0.75)
    upper.plot([0, 1], [0, 1], "--", color="black", alpha=0.6)
    upper.plot([b["confidence"] for b in bins], accuracy, "o", color=dot_colour, markersize=4)
    error = format_percent(results["calibration"]["ece"])
    upper.set(ylabel="accuracy", ylim=(0, 1), title=f"Expected calibration error {error}")
    lower.bar(low, [b["count"] for b in bins], width, align="edge", color="grey")
    lower.set(xlabel="confidence", ylabel="images", xlim=(0, 1))
    return figure
