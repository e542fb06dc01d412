"""Curves over what was varied, a panel for each kind: figures of evaluators, as PNG and SVG.

Lines differ by colour (Okabe and Ito's, made for colour-blind readers), by dash and by marker, so
that they are told apart in grey, too.
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

from patchwords.report.figures.svg import MAX_MATRIX_CLASSES, collect_training_charts
from patchwords.report.format import format_percent, truncate_name
from patchwords.report.html import replace_surrogates
from patchwords.report.run_data import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The charts as PNGs, for slides and papers: the same numbers as on the page, by matplotlib.


SERIES_COLOURS = {"first": "#0f766e", "second": "#c2540a", "third": "#6d4fc4"}
FIGURE_DPI = 150


def draw_run_figures(run: RunData) -> dict[str, bytes]:
    """File name -> PNG of each chart that the run has numbers for."""
    figures: dict[str, Figure | None] = {
        "curves.png": draw_training_curves(run),
        "confusion.png": draw_confusion_matrix(run.evaluation) if run.evaluation else None,
        "calibration.png": draw_reliability(run.evaluation) if run.evaluation else None,
    }
    return {
        name: encode_figure_png(figure) for name, figure in figures.items() if figure is not None
    }


def encode_figure_png(figure: Figure) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # a name in letters that the font lacks comes out as boxes; the page has it right
        warnings.filterwarnings("ignore", message="Glyph")
        # no date and no version inside: the same run gives the same bytes
        figure.savefig(file, format="png", dpi=FIGURE_DPI, metadata={"Software": None})
    return file.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """A figure without pyplot, whose global state would be left behind in the caller's program."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw_training_curves(run: RunData) -> Figure | None:
    """Loss, accuracy and learning rate over the steps, side by side."""
    drawn = collect_training_charts(run)
    if not drawn:
        return None
    figure = new_figure(4.2 * len(drawn), 3.2)
    for axes, (title, lines) in zip(
        figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True
    ):
        for line in lines:
            x, y = [p.x for p in line.points], [p.y for p in line.points]
            marker = "o" if line.dots or len(x) == 1 else None
            axes.plot(
                x, y, color=SERIES_COLOURS[line.look], marker=marker, markersize=4, label=line.name
            )
        axes.set(title=title, xlabel="step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(frameon=False)
    return figure


def draw_confusion_matrix(results: dict[str, Any]) -> Figure:
    """The matrix, shaded by the share of the row; up to 20 classes with their counts."""
    counts = np.array(results["confusion"])
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # a dollar sign would start mathematics
    names = [
        truncate_name(replace_surrogates(row["class"]), 24).replace("$", r"\$")
        for row in results["per_class"]
    ]
    few = len(names) <= MAX_MATRIX_CLASSES
    side = max(4.0, 1.6 + 0.5 * len(names)) if few else 8.0
    figure = new_figure(side + 0.8, side)
    axes = figure.subplots()
    image = axes.imshow(share, cmap="BuGn", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title="Confusion matrix")
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    if few:
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
        axes.set_yticks(range(len(names)), names)
        for (i, j), number in np.ndenumerate(counts):
            colour = "white" if share[i, j] > 0.6 else "black"
            axes.text(j, i, str(number), ha="center", va="center", color=colour, fontsize=9)
    return figure


def draw_reliability(results: dict[str, Any]) -> Figure:
    """Accuracy against confidence, and how many images each bin has."""
    bins = [b for b in results["calibration"]["bins"] if b["count"]]
    low = np.array([b["low"] for b in bins])
    width = np.array([b["high"] for b in bins]) - low
    figure = new_figure(4.6, 5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    heights = [b["accuracy"] for b in bins]
    upper.bar(low, heights, width * 0.92, align="edge", color=SERIES_COLOURS["first"], alpha=0.75)
    upper.plot([0, 1], [0, 1], "--", color="black", alpha=0.6)
    upper.plot(
        [b["confidence"] for b in bins], heights, "o", color=SERIES_COLOURS["second"], markersize=4
    )
    error = format_percent(results["calibration"]["ece"])
    upper.set(ylabel="accuracy", ylim=(0, 1), title=f"Expected calibration error {error}")
    lower.bar(low, [b["count"] for b in bins], width * 0.92, align="edge", color="grey")
    lower.set(xlabel="confidence", ylabel="images", xlim=(0, 1))
    return figure


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
PANEL_WIDTH, PANEL_HEIGHT = 4.4, 3.3  # of a panel, in inches
MAX_PANELS_PER_ROW = 3  # panels in a row
CAPTION_LETTERS_PER_INCH = 26  # of a caption, per inch of the figure


@dataclass(frozen=True)
class Curve:
    """A line, or its points alone; `low` and `high` are drawn as a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    line: bool = True


@dataclass(frozen=True)
class Panel:
    """One diagram; `x_ticks` are the places that are marked, none given: chosen."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[float] | None = None


def draw_panels(panels: Sequence[Panel], caption: str, name: str = "curves") -> dict[str, bytes]:
    """-> {"curves.png": ..., "curves.svg": ...}; the same numbers give the same bytes."""
    import matplotlib

    across = min(MAX_PANELS_PER_ROW, len(panels))
    down = math.ceil(len(panels) / across)
    lines = textwrap.wrap(
        escape_mathtext(caption), int(CAPTION_LETTERS_PER_INCH * PANEL_WIDTH * across / 1.6)
    )
    figure = new_figure(PANEL_WIDTH * across, PANEL_HEIGHT * down + 0.17 * len(lines) + 0.1)
    places = figure.subplots(down, across, squeeze=False).flat
    for axes, panel in zip(places, panels, strict=False):
        draw_panel(axes, panel)
    for axes in list(figure.axes)[len(panels) :]:
        axes.set_axis_off()
    figure.supxlabel("\n".join(lines), fontsize=8, x=0.01, ha="left")
    with matplotlib.rc_context({"svg.hashsalt": "patchwords"}):
        return {
            f"{name}.png": encode_figure(figure, "png"),
            f"{name}.svg": encode_figure(figure, "svg"),
        }


def draw_panel(axes: Axes, panel: Panel) -> None:
    for i, curve in enumerate(panel.curves):
        colour, marker, dash = LINE_STYLES[i % len(LINE_STYLES)]
        dash = dash if curve.line else "none"
        label = escape_mathtext(curve.label)
        axes.plot(
            curve.x, curve.y, color=colour, marker=marker, linestyle=dash, markersize=4, label=label
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
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, fontsize=8)


def escape_mathtext(text: str) -> str:
    """A dollar sign would start mathematics."""
    return text.replace("$", r"\$")


def encode_figure(figure: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    undated = {"Software": None} if kind == "png" else {"Date": None}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # letters that the font lacks
        figure.savefig(file, format=kind, dpi=FIGURE_DPI, metadata=undated)
    return file.getvalue()


# Values of named things beside those of others: a line of dots for each name, as PNG and SVG.


DOT_PLOT_WIDTH, DOT_PLOT_ROW_HEIGHT = (
    6.4,
    0.26,
)  # of the figure, and the height of a name, in inches


@dataclass(frozen=True)
class DotSeries:
    """One value for each name; `low` and `high` are drawn as a line through it."""

    label: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def draw_dot_plot(
    names: Sequence[str], series: Sequence[DotSeries], x_label: str, caption: str, name: str
) -> dict[str, bytes]:
    """-> {"NAME.png": ..., "NAME.svg": ...}, the first name on top; same numbers, same bytes."""
    import matplotlib

    lines = textwrap.wrap(
        escape_mathtext(caption), int(CAPTION_LETTERS_PER_INCH * DOT_PLOT_WIDTH / 1.6)
    )
    figure = new_figure(DOT_PLOT_WIDTH, 1.0 + DOT_PLOT_ROW_HEIGHT * len(names) + 0.17 * len(lines))
    axes = figure.subplots()
    places = range(len(names), 0, -1)
    for i, dots in enumerate(series):
        colour, marker, _ = LINE_STYLES[i % len(LINE_STYLES)]
        # only the first is filled: the eye finds it
        fill = colour if i == 0 else "none"
        axes.plot(dots.values, places, marker, color=colour, markerfacecolor=fill, label=dots.label)
        if dots.low is not None and dots.high is not None:
            axes.hlines(places, dots.low, dots.high, color=colour)
    axes.set_yticks(places, [escape_mathtext(word) for word in names])
    axes.set(xlabel=x_label, ylim=(0.4, len(names) + 0.6))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper left", frameon=False, fontsize=8, ncols=2)
    figure.supxlabel("\n".join(lines), fontsize=8, x=0.01, ha="left")
    with matplotlib.rc_context({"svg.hashsalt": "patchwords"}):
        return {
            f"{name}.png": encode_figure(figure, "png"),
            f"{name}.svg": encode_figure(figure, "svg"),
        }
