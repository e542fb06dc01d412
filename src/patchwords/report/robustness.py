"""Figures of robustness and of translation: a curve for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.evaluate.robustness.disturbance import Perturbation
from patchwords.report.curves import Curve, Panel, draw_panels

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
