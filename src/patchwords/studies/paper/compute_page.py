"""The page of `compute`: ratios, what each training cost, and Figure 5 beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.model.table6 import EXAFLOP, TABLE6
from patchwords.studies.contents import NOT_AVAILABLE, PageBlock, PageTable, PageText, format_flops
from patchwords.studies.paper.compute_numbers import (
    FAMILIES,
    HYBRID_SAVING,
    TRAINING_FLOPS,
    VIT_SAVING,
    ComputePoint,
    build_table6_point,
    collect_table6_points,
    parse_family,
)


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Ratios of compute as ratios; the compute of each training, here and in the paper."""
    return [
        PageText("Compute for the same accuracy, with the 95 % interval over the seeds."),
        PageTable(("", "here", "Table 6"), build_ratio_rows(results)),
        PageText("What each training took."),
        PageTable(("here", "compute", "accuracy, %"), build_own_rows(results)),
        PageTable(
            ("Table 6", "exaFLOPs", "ImageNet, %", "average of five, %"), build_table6_rows()
        ),
    ]


def build_ratio_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    by_label = {one["label"]: one for one in results["labels"]}
    rows: list[tuple[str, ...]] = []
    for label, name in ((VIT_SAVING, "ResNet to ViT"), (HYBRID_SAVING, "ViT to hybrid")):
        over, paper = by_label[label]["over_seeds"], by_label[label]["paper"]
        rows.append(
            (name, NOT_AVAILABLE if over is None else format_ratio(over), f"{2**paper:.1f}")
        )
    return rows


def format_ratio(over: Mapping[str, float | None]) -> str:
    """
    >>> format_ratio({"mean": 1.0, "low": -0.5, "high": 2.5}), format_ratio({"mean": -1.0, "low": None})
    ('2.00 (0.71 to 5.66)', '0.50')
    """
    said = f"{2 ** (over['mean'] or 0.0):.2f}"
    low, high = over["low"], over.get("high")
    return said if low is None or high is None else f"{said} ({2**low:.2f} to {2**high:.2f})"


def build_own_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    costs = {one["name"]: one.get(TRAINING_FLOPS) for one in results["cells"] if one["seed"] == 0}
    rows: list[tuple[str, ...]] = []
    for one in results["labels"]:
        if (cost := costs.get(one["cell"])) is not None and one["over_seeds"] is not None:
            rows.append(
                (one["label"], format_flops(cost), f"{100 * one['over_seeds']['mean']:.1f}")
            )
    return rows


def build_table6_rows() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row in TABLE6:
        cost, five = build_table6_point(row)
        printed = f"{row.exaflops:,}{f' (counted: {cost / EXAFLOP:,.0f})' if row.doubt else ''}"
        name = f"{row.model}, {row.epochs} epochs"
        rows.append((name, printed, f"{row.accuracies[0]:.2f}", f"{100 * five:.2f}"))
    return rows


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 5, here and as Table 6 has it: a dot for each training."""
    from patchwords.report.curves import Panel, draw_panels

    here: dict[str, list[ComputePoint]] = {family: [] for family in FAMILIES}
    for one in results["cells"]:
        if one.get(TRAINING_FLOPS) is not None and one.get("accuracy") is not None:
            here[parse_family(one["name"])].append((one[TRAINING_FLOPS], one["accuracy"]))
    unit = 1e12 if max(cost for some in here.values() for cost, _ in some) < EXAFLOP else EXAFLOP
    costs = [cost / unit for some in here.values() for cost, _ in some]
    name = f"{'tera' if unit < EXAFLOP else 'exa'}FLOPs"
    panels = [
        Panel(
            "Here",
            name,
            "%",
            build_point_curves(here, unit),
            log_x=True,
            x_ticks=choose_log_ticks(costs),
        ),
        Panel(
            "Table 6, average of five",
            "exaFLOPs",
            "%",
            build_point_curves(collect_table6_points(), EXAFLOP),
            True,
        ),
        Panel(
            "Table 6, ImageNet",
            "exaFLOPs",
            "%",
            build_point_curves(collect_imagenet_points(), EXAFLOP),
            True,
        ),
    ]
    caption = (
        f"Left: {results['quantity'].partition(';')[0]}, a dot for each training and seed. The "
        "others are Figure 5 as Table 6 has it, fine-tuned from JFT-300M. Compute is 6 x MACs x "
        "images."
    )
    return draw_panels(panels, caption, "compute")


def choose_log_ticks(costs: Sequence[float]) -> list[float]:
    """Round numbers that a short logarithmic axis is marked with.

    >>> choose_log_ticks([0.7, 3.0, 40.0])
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    low, high = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
    every = (round(figure * 10.0**power, 9) for power in range(low, high) for figure in (1, 2, 5))
    return [one for one in every if min(costs) <= one <= max(costs)]


def collect_imagenet_points() -> dict[str, list[ComputePoint]]:
    found: dict[str, list[ComputePoint]] = {family: [] for family in FAMILIES}
    for row in TABLE6:
        found[parse_family(row.model)].append((build_table6_point(row)[0], row.accuracies[0] / 100))
    return found


def build_point_curves(points: Mapping[str, Sequence[ComputePoint]], unit: float) -> list[Any]:
    from patchwords.report.curves import Curve

    return [
        Curve(
            family,
            [cost / unit for cost, _ in sorted(some)],
            [100 * accuracy for _, accuracy in sorted(some)],
            line=False,
        )
        for family, some in points.items()
        if some
    ]
