"""The charts as PNGs, for slides and papers: the same numbers as on the page, by matplotlib."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.report.charts import collect_training_charts
from patchwords.report.diagrams import MAX_MATRIX_CLASSES
from patchwords.report.html import replace_surrogates
from patchwords.report.run import RunData
from patchwords.report.words import format_percent, truncate_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
