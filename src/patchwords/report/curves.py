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
from typing import TYPE_CHECKING

from patchwords.report.figures import FIGURE_DPI, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
