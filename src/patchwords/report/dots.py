"""Values of named things beside those of others: a line of dots for each name, as PNG and SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from patchwords.report.curves import (
    CAPTION_LETTERS_PER_INCH,
    LINE_STYLES,
    encode_figure,
    escape_mathtext,
)
from patchwords.report.figures import new_figure

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
