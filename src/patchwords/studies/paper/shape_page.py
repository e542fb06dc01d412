"""The page of `shape`: what each model costs, and Figure 8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from patchwords.report.words import plural
from patchwords.studies.contents import NONE, Piece, Rows, Text
from patchwords.studies.paper.bands import over_seeds
from patchwords.studies.paper.shape_numbers import BASE, LINES, line_of

if TYPE_CHECKING:
    from patchwords.report.curves import Curve


def tables(results: Mapping[str, Any]) -> list[Piece]:
    """Compute and parameters of each shape, as multiples of the middle's."""
    cells = {one["name"]: one for one in results["cells"] if one["seed"] == 0}
    base, rows = cells[BASE], []
    for name, one in cells.items():
        ratios = (
            NONE if None in (one.get(key), base.get(key)) else f"{one[key] / base[key]:.2f}"
            for key in ("flops", "parameters")
        )
        rows.append((name, *ratios))
    return [
        Text("Compute and parameters, the middle's being 1."),
        Rows(("", "compute", "parameters"), rows),
    ]


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 8: a line for each dimension, from the middle; and the same over the parameters."""
    from patchwords.report.curves import Panel, draw_panels

    panels = [
        Panel(
            f"By {words}",
            f"relative {words}",
            "accuracy, %",
            [curve(results, line, key) for line in LINES],
            log_x=True,
            x_ticks=(1, 2, 4, 8),
        )
        for words, key in (("compute", "flops"), ("parameters", "parameters"))
    ]
    seeds = plural(results["seeds"], "seed")
    caption = (
        f"{results['quantity'].partition(';')[0].capitalize()}, mean over {seeds}, bands from the "
        "lowest to the highest. Lines start at the middle; each has more of one dimension, or of "
        "all. The left panel is Figure 8's."
    )
    return draw_panels(panels, caption, "shape")


def curve(results: Mapping[str, Any], line: str, key: str) -> Curve:
    """A dimension's cells over what they cost; a cell that diverged is left out."""
    found: dict[float, list[float | None]] = {}
    usual = next(one[key] for one in results["cells"] if one["name"] == BASE and key in one)
    for one in results["cells"]:
        if line_of(one["name"]) in (line, BASE) and one.get("accuracy") is not None:
            found.setdefault(one[key] / usual, []).append(one["accuracy"])
    return over_seeds(line, found)
