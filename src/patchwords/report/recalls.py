"""The figure of a comparison: each class's recall under both models, ordered by the difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.report.curves import LINE_STYLES, encode_figure, escape_mathtext
from patchwords.report.figures import new_figure
from patchwords.report.html import replace_surrogates as printable
from patchwords.report.words import truncate_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_RECALL_CLASSES = 30  # those with the largest differences; results.csv has them all
RECALL_ROW_HEIGHT, RECALL_FRAME_HEIGHT = 0.26, 1.3  # inches of a class, and of title and axis


def draw_recall_comparison(rows: Sequence[dict[str, Any]], a: str, b: str) -> dict[str, bytes]:
    """Rows of `compare`'s per_class -> {"recall.png": ..., "recall.svg": ...}.

    On the left both recalls, told apart by colour and marker; on the right their difference with
    its 95 % interval.
    """
    import matplotlib

    widest = sorted(rows, key=lambda row: -abs(row["difference"]))[:MAX_RECALL_CLASSES]
    drawn = sorted(widest, key=lambda row: row["difference"])  # the first is at the bottom
    figure = new_figure(9.0, RECALL_FRAME_HEIGHT + RECALL_ROW_HEIGHT * len(drawn))
    left, right = figure.subplots(1, 2, sharey=True)
    y = np.arange(len(drawn))
    for side, name, (colour, marker, _), shift in zip(
        "ab", (a, b), LINE_STYLES, (0.12, -0.12), strict=False
    ):
        recall = np.array([row[f"recall_{side}"] for row in drawn])
        label = format_class_name(name, 40)
        left.plot(recall, y + shift, marker, color=colour, markersize=5, label=label)
    left.set(xlabel="recall", xlim=(-0.02, 1.02), ylim=(-0.8, len(drawn) - 0.2))
    left.set_yticks(y, [format_class_name(row["class"], 28) for row in drawn])
    left.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    difference, low, high = (
        np.array([row[key] for row in drawn])
        for key in ("difference", "difference_low", "difference_high")
    )
    ends = [difference - low, high - difference]
    right.errorbar(difference, y, xerr=ends, fmt="o", color="black", markersize=4, capsize=2)
    right.axvline(0, color="grey", linewidth=1)
    right.set(xlabel="difference of recall, second less first (95 % interval)")
    for axes in (left, right):
        style_axes(axes)
    with matplotlib.rc_context({"svg.hashsalt": "patchwords"}):
        return {f"recall.{kind}": encode_figure(figure, kind) for kind in ("png", "svg")}


def format_class_name(name: str, length: int) -> str:
    return escape_mathtext(truncate_name(printable(name), length))


def style_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
