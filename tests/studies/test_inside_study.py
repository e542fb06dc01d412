"""Inside a ViT: the measures on what is known, and the whole study on digits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_study import DIGITS, SETTINGS, go

from patchwords.evaluation.model_insight import redraw_initial_weights
from patchwords.interpret.filters import principal_filters
from patchwords.studies.page import build_page_blocks, render_markdown_page
from patchwords.studies.paper import inside
from patchwords.studies.paper.inside import (
    MINI,
    ROWS,
    STUDY,
    compute_stage_values,
    make_stage_label,
)
from patchwords.studies.paper.inside_pictures import (
    ARRAYS_FILE,
    LAST,
    PANEL_UNITS,
    PANELS,
    STAGES,
    UNTRAINED,
    build_depth_panels,
    build_stage_curves,
    compute_low_frequency_share,
    name_head_distances,
    parse_head_distances,
)
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.weights.store import from_pretrained

SIDE = 6


def wave(down: int, across: int) -> np.ndarray:
    """A product of two cosines of the transform, [SIDE, SIDE]"""
    places = (np.arange(SIDE) + 0.5) / SIDE * np.pi
    return np.outer(np.cos(down * places), np.cos(across * places))


@pytest.mark.parametrize(
    ("down", "across", "share"), [(0, 0, 1), (2, 2, 1), (2, 3, 0), (3, 0, 0), (5, 5, 0)]
)
def test_a_wave_is_low_or_high(down: int, across: int, share: float) -> None:
    filters = np.array([-1.0, 0.5, 2.0])[:, None, None, None] * wave(down, across)
    assert compute_low_frequency_share(filters) == pytest.approx(share)


def test_the_mean_filter_is_taken_away_and_noise_has_a_quarter() -> None:
    noise = np.random.default_rng(0).normal(size=(500, 3, SIDE, SIDE))
    assert compute_low_frequency_share(noise) == pytest.approx(0.25, abs=0.01)
    assert compute_low_frequency_share(noise + 100 * wave(0, 0)) == pytest.approx(
        compute_low_frequency_share(noise)
    )


def test_heads_are_told_by_their_distance() -> None:
    numbers = name_head_distances(np.array([[0.9, 0.2], [0.5, 0.7], [0.8, 0.6]]))
    assert numbers["layer 1, head 1"] == 0.2
    assert parse_head_distances({"x": 1, **numbers}).tolist() == [
        [0.2, 0.9],
        [0.5, 0.7],
        [0.6, 0.8],
    ]


def test_the_rows_of_a_stage() -> None:
    """Deeper half of three layers: the last against the first."""
    numbers = {
        **{"accuracy": 0.5, "low frequencies": 0.3, "by distance": 0.4},
        **{"by rows and columns": 0.6, "rollout": 0.05},
        **name_head_distances(np.array([[0.9, 0.2], [0.1, 0.1], [0.8, 0.6]])),
    }
    found = compute_stage_values(numbers)
    assert set(found) == set(ROWS)
    assert found[inside.NEAREST] == 0.2
    assert found[inside.FARTHEST] == 0.9
    assert found[inside.FARTHEST_BEYOND] == pytest.approx(0.15)
    assert found[inside.DEEPER_HALF] == pytest.approx(0.7 - 0.55)
    assert compute_stage_values({"accuracy": None}) == {}


def test_claims_and_panels_are_about_rows_that_there_are() -> None:
    labels = {make_stage_label(row, stage) for row in ROWS for stage in STAGES}
    for claim in STUDY.claims:
        assert {*claim.more, *claim.less} <= labels
    drawn_rows = [row for rows in PANELS.values() for row in rows.values()]
    assert set(drawn_rows) == set(ROWS) - {inside.FARTHEST_BEYOND}
    assert set(PANEL_UNITS) == set(PANELS)


def test_every_stage_is_a_share_of_one_training() -> None:
    lengths = {"mini": inside.STEPS, "full": 14 * 303e6 / 4096}
    for name, scale in STUDY.scales.items():
        for stage, share in STAGES.items():
            if stage == UNTRAINED:
                continue
            own = scale.encoders[stage]
            if stage != LAST or "steps" in own:
                assert own["steps"] == pytest.approx(share * lengths[name], abs=1)
                assert own["schedule"] == "constant"
        assert [one["trained"] for one in scale.grid.values()] == [False, *[True] * 4]


@pytest.fixture(scope="module")
def folder(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study with a tiny ViT, done."""
    own = {"verb": "finetune", **SETTINGS, "schedule": "constant", "lr": 0.01, "depth": 2}
    own |= {"validation": 0.0, "eval_every": 1000, "log_every": 1, "save_every": 50}
    own |= {"batch_size": 32, "random_crop": 1.0, "flip": False}
    encoders = {
        stage: {**own, "steps": max(3, round(100 * share))}
        for stage, share in STAGES.items()
        if share
    }
    mini = replace(MINI, data=DIGITS, seeds=1, encoders=encoders)
    study = replace(STUDY, scales={"mini": mini, "full": mini})
    place = tmp_path_factory.mktemp("inside") / "study"
    place.mkdir()
    results = go(place, study)
    (place / "results.json").write_text(json.dumps(results))
    return place


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def test_a_short_run_is_the_beginning_of_a_long_one(folder: Path) -> None:
    """Else the stages would not be those of one training."""
    losses = []
    for place in sorted((folder / "shared").glob("*-0"), key=lambda one: int(one.name[:-2])):
        rows = read_metrics(place / "run" / "metrics.jsonl")
        losses.append([row["loss"] for row in rows if row["kind"] == "train"])
    assert [len(some) for some in losses] == [3, 10, 30, 100]
    for shorter in losses[:-1]:
        assert shorter == losses[-1][: len(shorter)]


def test_the_untrained_model_has_the_weights_that_training_began_with(folder: Path) -> None:
    model = from_pretrained(folder / "shared" / "1-0" / "run" / "model").model
    with np.load(folder / "cells" / f"{UNTRAINED}-0" / ARRAYS_FILE) as arrays:
        assert np.array_equal(
            arrays["filters"], principal_filters(redraw_initial_weights(model.config, 0)).components
        )
    with np.load(folder / "cells" / "100-0" / ARRAYS_FILE) as arrays:
        last = from_pretrained(folder / "shared" / "100-0" / "run" / "model").model
        assert np.array_equal(arrays["filters"], principal_filters(last).components)


def test_the_whole_study_on_digits(results: dict[str, Any]) -> None:
    values = {one["label"]: one["values"][0] for one in results["labels"]}
    assert list(values) == [make_stage_label(row, stage) for stage in STAGES for row in ROWS]
    assert (
        values[make_stage_label(inside.ACCURACY)]
        > 0.4
        > values[make_stage_label(inside.ACCURACY, UNTRAINED)]
    )
    assert (
        values[make_stage_label(inside.ROLLOUT, UNTRAINED)] == 0
    )  # the head is 0: nothing changes the answer
    # attention is nearly even before training: all heads look about as far
    assert values[make_stage_label(inside.NEAREST, UNTRAINED)] == pytest.approx(1, abs=0.25)
    assert results["compute"]["trainings"] == 4


def test_its_page_and_its_pictures(folder: Path, results: dict[str, Any]) -> None:
    files = {**STUDY.draw_figures(results), **STUDY.draw_stored_figures(folder, results)}
    pictures = [name.removesuffix(".png") for name in files if name.endswith(".png")]
    assert pictures == [
        *("inside", "inside-distance", "inside-filters", "inside-positions", "inside-rollout"),
    ]
    page = render_markdown_page(STUDY.title, build_page_blocks(STUDY, results, pictures, "command"))
    assert "| untrained | 1 % | 10 % | 30 % | 100 % |" in page
    assert "(inside-rollout.png)" in page
    assert (
        STUDY.draw_stored_figures(folder / "gone", results) == {}
    )  # of a study whose cells were deleted


def test_what_diverged_is_not_drawn(results: dict[str, Any]) -> None:
    cells = [{"name": stage, "accuracy": None} for stage in STAGES]
    assert build_depth_panels({"cells": cells}) == []
    nearest, mean, farthest = build_depth_panels(results)
    assert [curve.label for curve in nearest.curves] == list(STAGES)
    for low, middle, high in zip(nearest.curves, mean.curves, farthest.curves, strict=True):
        assert low.y[0] < middle.y[0] < high.y[0]
    values = {make_stage_label(inside.ACCURACY, stage): [0.5, None] for stage in STAGES}
    own, before = build_stage_curves(values, {"accuracy": inside.ACCURACY})
    assert own.y == before.y == [50] * 4
    values[make_stage_label(inside.ACCURACY, "1 %")] = [None, None]
    assert build_stage_curves(values, {"accuracy": inside.ACCURACY}) == []
