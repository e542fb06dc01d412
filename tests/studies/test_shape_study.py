"""Shape: gains per doubling and what predicts the accuracy, by hand; each line is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchwords.studies.budget import estimate_trial_cost
from patchwords.studies.paper.shape import (
    ALL_DIMENSIONS,
    BASE_TRIAL,
    COMPUTE_CORRELATION_LEAD,
    DEPTH,
    DIMENSIONS,
    PATCH_SIZE,
    STUDY,
    WIDTH,
    build_tables,
    compute_correlation_lead,
    compute_values,
    draw_study_figures,
    make_gain_label,
    parse_dimension,
)
from patchwords.studies.study import ScaleName, StudyContext, TrialMetrics


def row(accuracy: float | None, flops: float, parameters: float) -> TrialMetrics:
    return {"accuracy": accuracy, "flops": flops, "parameters": parameters}


FOUND: dict[str, TrialMetrics] = {
    BASE_TRIAL: row(0.30, 1e9, 1e5),
    "depth 8": row(0.34, 2e9, 2e5),
    "depth 16": row(0.36, 4e9, 4e5),
    "width 128": row(0.33, 8e9, 4e5),
    "MLP 512": row(0.32, 2e9, 2e5),
    "patch 4": row(0.38, 4e9, 1e5),
    "all, twice": row(0.28, 4e9, 4e5),
}
LABELS = {name: name for name in FOUND}


def test_gains_are_from_the_middle_to_the_dearest_by_doublings() -> None:
    values = compute_values(LABELS, FOUND)
    assert values[make_gain_label(DEPTH)] == pytest.approx(0.03)
    assert values[make_gain_label(WIDTH)] == pytest.approx(0.01)
    assert values[make_gain_label(PATCH_SIZE)] == pytest.approx(0.04)
    assert values[make_gain_label(ALL_DIMENSIONS)] == pytest.approx(-0.01)
    assert values["depth 8"] == 0.34


def test_what_follows_the_compute_correlates_with_it() -> None:
    by_compute = [row(0.1 * i, 2.0**i, 2.0 ** (i % 2)) for i in range(4)]
    by_size = [row(0.1 * i, 2.0 ** (i % 2), 2.0**i) for i in range(4)]
    # i against i % 2, from 0 to 3: r is 1 / sqrt(5)
    for found, sign in ((by_compute, 1), (by_size, -1)):
        cells = {str(i): one for i, one in enumerate(found)}
        assert compute_correlation_lead(cells) == pytest.approx(sign * (1 - 1 / 5))


def test_a_cell_that_diverged_takes_its_line_with_it() -> None:
    lost = {**FOUND, "depth 16": {"diverged": 1.0, "accuracy": None}}
    values = compute_values(LABELS, lost)
    assert values[make_gain_label(DEPTH)] is None
    assert values[make_gain_label(WIDTH)] == pytest.approx(0.01)
    assert values[COMPUTE_CORRELATION_LEAD] is None
    assert (
        compute_values(LABELS, {**FOUND, BASE_TRIAL: {"accuracy": None}})[make_gain_label(WIDTH)]
        is None
    )


@pytest.mark.parametrize("name", ["mini", "full"])
def test_lines_have_more_of_one_dimension(name: ScaleName) -> None:
    scale = STUDY.scales[name]
    bench = StudyContext(Path("nowhere"), scale, "somewhere", "elsewhere")
    costs = {cell.name: estimate_trial_cost(cell, bench) for cell in scale.list_trials(1)}
    base = scale.grid[BASE_TRIAL]
    changes = {
        "depth": {"depth"},
        "width": {"width", "heads"},
        "MLP": {"mlp_width"},
        "patch": {"model"},
        "all": {"depth", "width", "heads", "mlp_width"},
    }
    assert {parse_dimension(cell) for cell in scale.grid} == {BASE_TRIAL, *DIMENSIONS}
    for cell, own in scale.grid.items():
        if cell != BASE_TRIAL:
            assert {key for key in own if own[key] != base[key]} == changes[
                parse_dimension(cell)
            ], cell
            assert 1.9 < costs[cell].flops / costs[BASE_TRIAL].flops < 10  # the axis of Figure 8
    patch = next(cell for cell in scale.grid if parse_dimension(cell) == PATCH_SIZE)
    assert costs[patch].parameters < costs[BASE_TRIAL].parameters


def test_the_page_and_the_figure() -> None:
    cells = [{"name": name, "seed": seed, **one} for name, one in FOUND.items() for seed in (0, 1)]
    cells.append({"name": "depth 8", "seed": 2, "accuracy": None, "diverged": 1.0})
    results = {"cells": cells, "seeds": 2, "quantity": "accuracy; and gains"}
    assert draw_study_figures(results)["shape.png"].startswith(b"\x89PNG")
    assert ("patch 4", "4.00", "1.00") in build_tables(results)[1].rows  # type: ignore[union-attr]
