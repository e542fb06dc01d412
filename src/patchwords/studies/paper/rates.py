"""Learning rates that validation images choose among: the best of each label, and their curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchwords.studies.paper.bands import build_seed_curve
from patchwords.studies.study import TrialGrid

if TYPE_CHECKING:
    from patchwords.report.curves import Curve

LabelFunction = Callable[[str], str]  # the name of a cell -> what it is one rate of


def choose_best_rates(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]], label_of: LabelFunction
) -> dict[str, str]:
    """Label -> its cell with the best mean over the seeds, in the order of the grid.

    A rate at which any seed diverged is out; of equally good ones the smallest is taken.
    """
    cells: dict[str, list[str]] = {label_of(name): [] for name in grid}
    for name in sorted(grid, key=lambda name: float(grid[name].get("lr", 0.0))):
        cells[label_of(name)].append(name)
    return {
        label: max(names, key=lambda name: mean_for_ranking(validation[name]))
        for label, names in cells.items()
    }


def mean_for_ranking(values: Sequence[float | None]) -> float:
    """Below every accuracy where one is missing, or all are."""
    alive = [value for value in values if value is not None]
    return sum(alive) / len(alive) if alive and len(alive) == len(values) else -1.0


def build_rate_curves(results: Mapping[str, Any], label_of: LabelFunction) -> dict[str, Curve]:
    """Label -> final validation accuracy over its rates; none where no rate was chosen."""
    found: dict[str, dict[float, list[float | None]]] = {}
    for row in results["cells"]:
        own = results["grid"][row["name"]]
        if "lr" in own:
            of_label = found.setdefault(label_of(row["name"]), {})
            of_label.setdefault(own["lr"], []).append(row["validation"])
    return {label: build_seed_curve(label, values) for label, values in found.items()}
