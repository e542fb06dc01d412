"""Figures that compare models: recall by class, robustness, shift equivariance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from patchwords.evaluation.robustness.perturbation import Perturbation
from patchwords.report.figures.plots import (
    LINE_STYLES,
    Curve,
    FigureFiles,
    Panel,
    draw_panels,
    format_class_name,
    new_figure,
    save_figure,
    style_axes,
)

MAX_RECALL_CLASSES = 30  # with the largest differences; results.csv has all classes
RECALL_ROW_HEIGHT, RECALL_FRAME_HEIGHT = 0.26, 1.3  # inches of a class, and of title and axis
RobustnessPoint = Mapping[str, Any]
SEED_BAND_CAPTION = "Lines are means over seeds; bands are the range over seeds."
EQUIVARIANCE_CAPTION = (
    "f(g(x)) against g(f(x)) for circular shifts g, down and to the right. 0: f commutes with the "
    "shift (for the logits: is invariant to it); 1.41: as different as unrelated vectors. A "
    "convolution commutes at multiples of its stride, a patch embedding at multiples of the patch "
    "size."
)


def draw_recall_comparison(rows: Sequence[dict[str, Any]], a: str, b: str) -> FigureFiles:
    """Draw each class's recall under both models: recall.png and recall.svg.

    `rows` are per_class of `compare`. Left: both recalls; right: their difference with its 95 %
    interval.
    """
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
    right.set(xlabel="difference in recall, second minus first (95 % interval)")
    for axes in (left, right):
        style_axes(axes)
    return save_figure(figure, "recall")


def draw_robustness(
    perturbations: Sequence[Perturbation], points: Sequence[RobustnessPoint]
) -> FigureFiles:
    """Draw accuracy by level, a figure for each family; `points` are those of `summarise_seeds`."""
    files: FigureFiles = {}
    for family in dict.fromkeys(each.family for each in perturbations):
        members = [each for each in perturbations if each.family == family]
        panels = [
            make_robustness_panel(
                each, [point for point in points if point["disturbance"] == each.name]
            )
            for each in members
        ]
        published = dict.fromkeys(each.published for each in members)
        files |= draw_panels(panels, " ".join([SEED_BAND_CAPTION, *published]), family)
    return files


def make_robustness_panel(perturbation: Perturbation, points: Sequence[RobustnessPoint]) -> Panel:
    """Make a panel of the accuracy in percent by level."""
    curves = []
    for name in dict.fromkeys(robustness_curve_name(point) for point in points):
        line = sorted(
            (point for point in points if robustness_curve_name(point) == name),
            key=lambda p: p["level"],
        )
        mean, lowest, highest = (
            [100 * point[key] for point in line] for key in ("mean", "lowest", "highest")
        )
        curves.append(Curve(name, [point["level"] for point in line], mean, lowest, highest))
    levels = sorted({point["level"] for point in points})
    return Panel(
        perturbation.title,
        perturbation.x_label,
        "accuracy, %",
        curves,
        log_x=perturbation.log_x,
        x_ticks=levels if perturbation.log_x else None,
    )


def robustness_curve_name(point: RobustnessPoint) -> str:
    """Name a curve: the model, and the model that the attack was prepared on, if another."""
    maker = point["prepared_on"]
    return (
        str(point["model"]) if maker in (None, point["model"]) else f"{point['model']} ({maker}'s)"
    )


def draw_equivariance(rows: Sequence[RobustnessPoint]) -> FigureFiles:
    """Draw the equivariance error by shift: translation.png and translation.svg."""
    titles = {
        "stem": "Stem",
        "features": "Features before the head",
        "logits": "Logits",
    }
    panels = []
    for place, title in titles.items():
        curves = [
            Curve(str(model), *mean_shift_error(rows, str(model), place))
            for model in dict.fromkeys(row["model"] for row in rows)
        ]
        panels.append(Panel(title, "shift, pixels", "relative error", curves))
    return draw_panels(panels, EQUIVARIANCE_CAPTION, "translation")


def mean_shift_error(
    rows: Sequence[RobustnessPoint], model: str, place: str
) -> tuple[list[float], list[float]]:
    """Return shifts in pixels and the mean error of both directions, where it is known."""
    errors: dict[float, list[float]] = {}
    for row in rows:
        if row["model"] == model and row["place"] == place and row["error"] is not None:
            errors.setdefault(row["pixels"], []).append(row["error"])
    return [*errors], [sum(values) / len(values) for values in errors.values()]
