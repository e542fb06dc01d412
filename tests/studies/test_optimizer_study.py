"""Optimizer: the best rate of each, Adam's lead over the models, Table 7 as printed."""

from __future__ import annotations

import pytest

from patchwords.studies.paper.optimizer import (
    ADAM_LEAD,
    ADAM_LEAD_FEWSHOT,
    FULL,
    MINI,
    STUDY,
    TABLE_7,
    build_tables,
    choose_trials,
    compute_values,
    draw_study_figures,
)
from patchwords.studies.paper.setups import FEWSHOT_LABEL
from patchwords.studies.study import TrialMetrics


def test_each_optimizer_has_the_rate_that_validation_likes() -> None:
    validation: dict[str, list[float | None]] = {name: [0.1, 0.1] for name in MINI.grid}
    validation["R14x1, Adam, lr 0.001"] = [0.3, 0.2]
    validation["R14x1, SGD, lr 0.3"] = [0.9, None]  # diverged once
    validation["R14x1, SGD, lr 0.1"] = [0.2, 0.1]
    assert choose_trials(MINI.grid, validation) == {
        "R14x1, Adam": "R14x1, Adam, lr 0.001",
        "R14x1, SGD": "R14x1, SGD, lr 0.1",
    }
    alike: dict[str, list[float | None]] = {name: [0.1] for name in MINI.grid}
    assert choose_trials(MINI.grid, alike)["R14x1, SGD"] == "R14x1, SGD, lr 0.03"


def test_published_settings_are_taken_as_they_are() -> None:
    assert choose_trials(FULL.grid, {name: [] for name in FULL.grid}) == {
        name: name for name in TABLE_7
    }


def test_the_lead_is_the_mean_over_the_models() -> None:
    found: dict[str, TrialMetrics] = {
        "R50x1, Adam": {"accuracy": 0.5, FEWSHOT_LABEL: 0.2},
        "R50x1, SGD": {"accuracy": 0.4, FEWSHOT_LABEL: 0.4},
        "R152x2, Adam": {"accuracy": 0.7, FEWSHOT_LABEL: 0.3},
        "R152x2, SGD": {"accuracy": 0.7, FEWSHOT_LABEL: 0.3},
    }
    values = compute_values({name: name for name in found}, found)
    assert values[ADAM_LEAD] == pytest.approx(0.05)
    assert values[ADAM_LEAD_FEWSHOT] == pytest.approx(-0.1)
    assert values[f"R50x1, SGD, {FEWSHOT_LABEL}"] == 0.4
    plain = {name: {"accuracy": one["accuracy"]} for name, one in found.items()}
    values = compute_values({name: name for name in found}, plain)
    assert values[ADAM_LEAD_FEWSHOT] == values[ADAM_LEAD]
    lost = {**found, "R152x2, SGD": {"accuracy": None}}
    assert compute_values({name: name for name in found}, lost)[ADAM_LEAD] is None


def test_table_7_is_as_printed() -> None:
    for *row, average in TABLE_7.values():
        assert f"{sum(row) / len(row):.2f}" == f"{average:.2f}"
    assert STUDY.paper["R152x2, SGD"] == pytest.approx(0.8437)
    [_, table] = build_tables({"labels": [], "grid": {}})
    gaps = {row[0]: row[1:] for row in table.rows}  # type: ignore[union-attr]
    assert gaps["R50x1, Adam less SGD"] == ("-0.70", "+0.21", "+0.90", "+0.11", "+2.20", "+0.54")
    assert gaps["R152x2, Adam less SGD"] == ("+0.60", "-0.01", "+0.99", "+0.58", "-0.70", "+0.29")
    first, second = (claim.paper for claim in STUDY.claims)
    assert first.startswith("+0.5 points for R50x1, +0.3 for R152x2")
    assert first.endswith("-0.7 and +0.6 (Table 7)")
    assert second.startswith("on CIFAR-100 +0.9 and +1.0 points, on Pets +0.1 and +0.6")


def test_the_figure_has_the_rates() -> None:
    cells = [{"name": name, "validation": 0.1 * seed} for name in MINI.grid for seed in (1, 2)]
    results = {"grid": MINI.grid, "cells": cells, "seeds": 2}
    assert draw_study_figures(results)["optimizer.png"].startswith(b"\x89PNG")
    full = {"grid": FULL.grid, "cells": [{"name": name} for name in FULL.grid], "seeds": 1}
    assert draw_study_figures(full) == {}
