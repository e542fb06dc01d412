"""The page of `compute`: ratios, what each training cost, and Figure 5 beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.model.table6 import EXA, TABLE6
from patchwords.studies.contents import NONE, Piece, Rows, Text, flops
from patchwords.studies.paper.compute_numbers import (
    COMPUTE,
    FAMILIES,
    HYBRID_SAVES,
    SAVES,
    Point,
    family_of,
    of_paper,
    paper_points,
)


def tables(results: Mapping[str, Any]) -> list[Piece]:
    """Ratios of compute as ratios; the compute of each training, here and in the paper."""
    return [
        Text("Compute for the same accuracy, with the 95 % interval over the seeds."),
        Rows(("", "here", "Table 6"), ratios(results)),
        Text("What each training took."),
        Rows(("here", "compute", "accuracy, %"), rows_here(results)),
        Rows(("Table 6", "exaFLOPs", "ImageNet, %", "average of five, %"), rows_there()),
    ]


def ratios(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    by_label = {one["label"]: one for one in results["labels"]}
    rows: list[tuple[str, ...]] = []
    for label, name in ((SAVES, "ResNet to ViT"), (HYBRID_SAVES, "ViT to hybrid")):
        over, paper = by_label[label]["over_seeds"], by_label[label]["paper"]
        rows.append((name, NONE if over is None else ratio(over), f"{2**paper:.1f}"))
    return rows


def ratio(over: Mapping[str, float | None]) -> str:
    """
    >>> ratio({"mean": 1.0, "low": -0.5, "high": 2.5}), ratio({"mean": -1.0, "low": None})
    ('2.00 (0.71 to 5.66)', '0.50')
    """
    said = f"{2 ** (over['mean'] or 0.0):.2f}"
    low, high = over["low"], over.get("high")
    return said if low is None or high is None else f"{said} ({2**low:.2f} to {2**high:.2f})"


def rows_here(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    costs = {one["name"]: one.get(COMPUTE) for one in results["cells"] if one["seed"] == 0}
    rows: list[tuple[str, ...]] = []
    for one in results["labels"]:
        if (cost := costs.get(one["cell"])) is not None and one["over_seeds"] is not None:
            rows.append((one["label"], flops(cost), f"{100 * one['over_seeds']['mean']:.1f}"))
    return rows


def rows_there() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row in TABLE6:
        cost, five = of_paper(row)
        printed = f"{row.exaflops:,}{f' (counted: {cost / EXA:,.0f})' if row.doubt else ''}"
        name = f"{row.model}, {row.epochs} epochs"
        rows.append((name, printed, f"{row.accuracies[0]:.2f}", f"{100 * five:.2f}"))
    return rows


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 5, here and as Table 6 has it: a dot for each training."""
    from patchwords.report.curves import Panel, draw_panels

    here: dict[str, list[Point]] = {family: [] for family in FAMILIES}
    for one in results["cells"]:
        if one.get(COMPUTE) is not None and one.get("accuracy") is not None:
            here[family_of(one["name"])].append((one[COMPUTE], one["accuracy"]))
    unit = 1e12 if max(cost for some in here.values() for cost, _ in some) < EXA else EXA
    costs = [cost / unit for some in here.values() for cost, _ in some]
    name = f"{'tera' if unit < EXA else 'exa'}FLOPs"
    panels = [
        Panel("Here", name, "%", dots(here, unit), log_x=True, x_ticks=marks(costs)),
        Panel("Table 6, average of five", "exaFLOPs", "%", dots(paper_points(), EXA), True),
        Panel("Table 6, ImageNet", "exaFLOPs", "%", dots(imagenet(), EXA), True),
    ]
    caption = (
        f"Left: {results['quantity'].partition(';')[0]}, a dot for each training and seed. The "
        "others are Figure 5 as Table 6 has it, fine-tuned from JFT-300M. Compute is 6 x MACs x "
        "images."
    )
    return draw_panels(panels, caption, "compute")


def marks(costs: Sequence[float]) -> list[float]:
    """Round numbers that a short logarithmic axis is marked with.

    >>> marks([0.7, 3.0, 40.0])
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    low, high = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
    every = (round(figure * 10.0**power, 9) for power in range(low, high) for figure in (1, 2, 5))
    return [one for one in every if min(costs) <= one <= max(costs)]


def imagenet() -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {family: [] for family in FAMILIES}
    for row in TABLE6:
        found[family_of(row.model)].append((of_paper(row)[0], row.accuracies[0] / 100))
    return found


def dots(points: Mapping[str, Sequence[Point]], unit: float) -> list[Any]:
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
