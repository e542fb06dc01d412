"""The page of `shape`: what each model costs, and Figure 8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from patchwords.report.words import pluralise
from patchwords.studies.contents import NOT_AVAILABLE, PageBlock, PageTable, PageText
from patchwords.studies.paper.bands import build_seed_curve
from patchwords.studies.paper.shape_numbers import BASE_TRIAL, DIMENSIONS, parse_dimension

if TYPE_CHECKING:
    from patchwords.report.curves import Curve


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Compute and parameters of each shape, as multiples of the middle's."""
    cells = {one["name"]: one for one in results["cells"] if one["seed"] == 0}
    base, rows = cells[BASE_TRIAL], []
    for name, one in cells.items():
        ratios = (
            NOT_AVAILABLE
            if None in (one.get(key), base.get(key))
            else f"{one[key] / base[key]:.2f}"
            for key in ("flops", "parameters")
        )
        rows.append((name, *ratios))
    return [
        PageText("Compute and parameters, the middle's being 1."),
        PageTable(("", "compute", "parameters"), rows),
    ]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 8: a line for each dimension, from the middle; and the same over the parameters."""
    from patchwords.report.curves import Panel, draw_panels

    panels = [
        Panel(
            f"By {words}",
            f"relative {words}",
            "accuracy, %",
            [build_dimension_curve(results, line, key) for line in DIMENSIONS],
            log_x=True,
            x_ticks=(1, 2, 4, 8),
        )
        for words, key in (("compute", "flops"), ("parameters", "parameters"))
    ]
    seeds = pluralise(results["seeds"], "seed")
    caption = (
        f"{results['quantity'].partition(';')[0].capitalize()}, mean over {seeds}, bands from the "
        "lowest to the highest. Lines start at the middle; each has more of one dimension, or of "
        "all. The left panel is Figure 8's."
    )
    return draw_panels(panels, caption, "shape")


def build_dimension_curve(results: Mapping[str, Any], line: str, key: str) -> Curve:
    """A dimension's cells over what they cost; a cell that diverged is left out."""
    found: dict[float, list[float | None]] = {}
    usual = next(one[key] for one in results["cells"] if one["name"] == BASE_TRIAL and key in one)
    for one in results["cells"]:
        if parse_dimension(one["name"]) in (line, BASE_TRIAL) and one.get("accuracy") is not None:
            found.setdefault(one[key] / usual, []).append(one["accuracy"])
    return build_seed_curve(line, found)
