"""Mixers in the place of attention: are they of equal compute, and is a gap one of pairs?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchwords.models.zoo import resolve_model
from patchwords.studies.budget import estimate_trial_cost
from patchwords.studies.page_blocks import PageTable
from patchwords.studies.paper import mixers
from patchwords.studies.paper.analysis import compute_label_gaps, format_gap, get_gap_interval
from patchwords.studies.study import SCALES, ScaleName, StudyContext


@pytest.mark.parametrize("scale", SCALES)
def test_all_mixers_cost_the_same(scale: ScaleName) -> None:
    bench = StudyContext(Path("nowhere"), mixers.STUDY.scales[scale], "somewhere")
    costs = {cell.name: estimate_trial_cost(cell, bench) for cell in bench.scale.list_trials(1)}
    usual = costs[mixers.ATTENTION]
    for name, cost in costs.items():
        assert cost.flops == pytest.approx(usual.flops, rel=0.02), name
        assert cost.images == usual.images


def test_only_the_mixer_and_the_width_differ() -> None:
    for scale in mixers.STUDY.scales.values():
        for own in scale.grid.values():
            assert own.keys() <= {"mixer", "window", "width", "mlp_width", "heads"}
            assert own["mlp_width"] == 4 * own["width"]
    full = mixers.FULL_GRID[mixers.ATTENTION]
    base = resolve_model("ViT-B/16").config
    assert {name: getattr(base, name) for name in full} == full


LABELS: dict[str, list[float | None]] = {
    mixers.ATTENTION: [0.5, 0.6, None],
    mixers.LOCAL: [0.54, 0.62, 0.9],
    mixers.POOLING: [None, None, 0.9],
    mixers.MLP: [0.45, 0.55, 0.5],
    mixers.IDENTITY: [0.4, 0.4, 0.4],
}


def made_up() -> dict[str, Any]:
    cells = [
        {"name": name, "seed": seed, "parameters": 1000.0, "flops": 100.0 + len(name)}
        for seed in range(3)
        for name in LABELS
    ]
    return {
        "labels": [{"label": name, "values": values} for name, values in LABELS.items()],
        "cells": cells,
        "grid": mixers.MINI_GRID,
        "seeds": 3,
        "quantity": mixers.STUDY.quantity,
    }


def test_a_gap_is_of_pairs_and_what_diverged_is_left_out() -> None:
    found = compute_label_gaps(made_up(), list(LABELS), mixers.ATTENTION)
    assert mixers.POOLING not in found
    local = found[mixers.LOCAL]
    assert (local.mean, local.n) == (pytest.approx(0.03), 2)
    low, high = get_gap_interval(local)
    assert low < 0.03 < high
    assert format_gap(local) == f"+3.0 ({100 * low:+.1f} to {100 * high:+.1f})"
    [alone] = compute_label_gaps({"labels": [{"label": "a", "values": [0.2]}]}, ["a"], "a").values()
    assert (get_gap_interval(alone), format_gap(alone)) == ((0, 0), "+0.0")


def test_the_page_says_what_was_equal() -> None:
    [_, table] = mixers.build_tables(made_up())
    assert isinstance(table, PageTable)
    by_name = {row[0]: row for row in table.rows}
    assert by_name[mixers.ATTENTION][1:] == ("64", "1,000", "100.0 %", "-")
    more = 100 * (100 + len(mixers.LOCAL)) / (100 + len(mixers.ATTENTION))
    assert by_name[mixers.LOCAL][3] == f"{more:.1f} %"
    assert by_name[mixers.LOCAL][4].startswith("+3.0 (")
    assert by_name[mixers.POOLING][4] == "-"


def test_the_figure_is_drawn_without_what_diverged() -> None:
    figures = mixers.draw_study_figures(made_up())
    assert set(figures) == {"mixers.png", "mixers.svg"}
    assert figures["mixers.png"].startswith(b"\x89PNG")
