"""The figure of a comparison: each class's recall under both models, ordered by the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.evaluation.robustness.perturbation import Perturbation
from patchwords.report.figures.plots import (
    LINE_STYLES,
    Curve,
    Panel,
    draw_panels,
    encode_figure,
    escape_mathtext,
    new_figure,
)
from patchwords.report.format import truncate_name
from patchwords.report.html import replace_surrogates as printable

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


# Figures of robustness and of translation: a curve for each model.


RobustnessPoint = Mapping[str, Any]
SEED_BAND_CAPTION = "Lines are means over seeds; bands reach from the lowest to the highest."


def draw_robustness(
    disturbances: Sequence[Perturbation], points: Sequence[RobustnessPoint]
) -> dict[str, bytes]:
    """Points of `summarise_seeds` -> {"occlusion.png": ..., "occlusion.svg": ...} by family."""
    files: dict[str, bytes] = {}
    for family in dict.fromkeys(each.family for each in disturbances):
        members = [each for each in disturbances if each.family == family]
        panels = [
            make_robustness_panel(
                each, [point for point in points if point["disturbance"] == each.name]
            )
            for each in members
        ]
        published = dict.fromkeys(each.published for each in members)
        files |= draw_panels(panels, " ".join([SEED_BAND_CAPTION, *published]), family)
    return files


def make_robustness_panel(disturbance: Perturbation, points: Sequence[RobustnessPoint]) -> Panel:
    """Accuracy in percent over the levels."""
    curves = []
    for name in dict.fromkeys(robustness_curve_name(point) for point in points):
        mine = sorted(
            (point for point in points if robustness_curve_name(point) == name),
            key=lambda p: p["level"],
        )
        mean, lowest, highest = (
            [100 * point[key] for point in mine] for key in ("mean", "lowest", "highest")
        )
        curves.append(Curve(name, [point["level"] for point in mine], mean, lowest, highest))
    levels = sorted({point["level"] for point in points})
    return Panel(
        disturbance.title,
        disturbance.x_label,
        "accuracy, %",
        curves,
        log_x=disturbance.log_x,
        x_ticks=levels if disturbance.log_x else None,
    )


def robustness_curve_name(point: RobustnessPoint) -> str:
    """What a curve is called: the model, and whose weakness was learned, if another's."""
    maker = point["prepared_on"]
    return (
        str(point["model"]) if maker in (None, point["model"]) else f"{point['model']} ({maker}'s)"
    )


def draw_equivariance(rows: Sequence[RobustnessPoint]) -> dict[str, bytes]:
    """Rows of `measure_translation` -> {"translation.png": ..., "translation.svg": ...}."""
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
    """Pixels, and the mean error of shifts down and to the right, where it is known."""
    errors: dict[float, list[float]] = {}
    for row in rows:
        if row["model"] == model and row["place"] == place and row["error"] is not None:
            errors.setdefault(row["pixels"], []).append(row["error"])
    return [*errors], [sum(found) / len(found) for found in errors.values()]


EQUIVARIANCE_CAPTION = (
    "f(g(x)) against g(f(x)) for shifts g, down and to the right, in a circle. 0: f commutes with "
    "the shift (the logits: are not changed by it); 1.41: as unlike as if they had nothing to do "
    "with one another. A convolution commutes at multiples of its stride, a patch embedding at "
    "multiples of the patch size."
)
