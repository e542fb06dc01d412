"""Resolution: which cell a place of the table is, and what stretching does, written out again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_study import DIGITS, SETTINGS

from patchwords.studies.paper import resolution
from patchwords.studies.paper.analysis import build_seed_curve
from patchwords.studies.paper.resolution import (
    METHODS,
    ROWS,
    SIZE_FACTORS,
    STUDY,
    WITH_POSITIONS,
    WITHOUT_POSITIONS,
    build_resolution_grid,
    make_accuracy_lost_label,
    parse_resize_method,
)
from patchwords.studies.study import Scale, StudyContext, Trial, TrialMetrics
from patchwords.studies.training import evaluate_on_test, select_trial_data, train_and_measure
from patchwords.training.config import read_config_yaml
from patchwords.weights.store import from_pretrained


@pytest.mark.parametrize(
    ("scale", "sides"), [("mini", (32, 48, 64, 96)), ("full", (224, 336, 448, 672))]
)
def test_every_interpolation_at_every_size_with_and_without_tuning(
    scale: Any, sides: tuple[int, ...]
) -> None:
    grid = STUDY.scales[scale].grid
    own, *larger = sides
    found = {
        (cell["encoder"], cell.get("verb"), *cell["image_size"], parse_resize_method(name))
        for name, cell in grid.items()
    }
    usual = "bilinear-corners"
    assert found == {
        *((WITH_POSITIONS, verb, own, usual) for verb in ("none", None)),
        *(
            (WITH_POSITIONS, verb, side, method)
            for verb in ("none", None)
            for side in larger
            for method in METHODS
        ),
        *((WITHOUT_POSITIONS, "none", side, usual) for side in sides),
    }
    assert len(grid) == len(found)


def test_the_two_encoders_differ_by_their_positions_alone() -> None:
    for scale in STUDY.scales.values():
        assert {**scale.encoders[WITH_POSITIONS], "position": "none"} == scale.encoders[
            WITHOUT_POSITIONS
        ]


def numbers() -> dict[str, TrialMetrics]:
    """Every cell an accuracy of its own."""
    return {name: {"accuracy": i / 100} for i, name in enumerate(build_resolution_grid(32))}


def test_the_table_is_read_from_its_cells() -> None:
    found = numbers()
    table = resolution.compute_values({}, found)
    for start in ("as it is", "fine-tuned"):
        for method in METHODS:
            own = table[f"{start}, {method}, 1x"]
            assert own == found[f"{start}, 1x"]["accuracy"]  # of all interpolations one
            far = table[f"{start}, {method}, 3x"]
            assert far == found[f"{start}, {method}, 3x"]["accuracy"]
    assert set(table) == {
        *(f"{row}, {factor}" for row in ROWS for factor in SIZE_FACTORS),
        *map(make_accuracy_lost_label, (WITH_POSITIONS, WITHOUT_POSITIONS)),
    }


def test_what_is_lost_is_the_accuracy_before_less_that_after() -> None:
    found = numbers()
    found["as it is, 1x"] = {"accuracy": 0.7}
    found["as it is, bilinear-corners, 3x"] = {"accuracy": 0.2}
    found["as it is, without positions, 1x"] = {"accuracy": None}
    table = resolution.compute_values({}, found)
    assert table[make_accuracy_lost_label(WITH_POSITIONS)] == pytest.approx(0.5)
    assert table[make_accuracy_lost_label(WITHOUT_POSITIONS)] is None


def test_claims_are_about_what_is_read() -> None:
    table = resolution.compute_values({}, numbers())
    for claim in STUDY.claims:
        assert {*claim.more, *claim.less} <= set(table)


def test_a_band_leaves_out_what_diverged() -> None:
    curve = build_seed_curve("name", {3.0: [None, None], 2.0: [0.5, 0.25], 1.0: [None, 0.75]})
    assert (curve.x, curve.y, curve.low, curve.high) == ([1, 2], [75, 37.5], [75, 25], [75, 50])


BRIEF = {**SETTINGS, "steps": 20, "eval_every": 20, "lr": 0.01, "verb": "finetune"}
TUNING = {
    name: value for name, value in BRIEF.items() if name not in {"model", "image_size", "verb"}
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> StudyContext:
    """With an encoder of 2x2 patches of digits."""
    scale = Scale(
        data=DIGITS,
        verb="finetune",
        settings={**TUNING, "steps": 3, "warmup_steps": 0},
        grid=build_resolution_grid(8),
        encoders={WITH_POSITIONS: BRIEF, WITHOUT_POSITIONS: {**BRIEF, "position": "none"}},
        seeds=1,
        time="seconds",
    )
    bench = StudyContext(
        tmp_path_factory.mktemp("study"), scale, "digits", device="cpu", precision="fp32"
    )
    [encoder, _] = scale.list_pretrainings(1)
    bench.trial_folder(encoder).mkdir(parents=True)
    train_and_measure(encoder, bench)
    return bench


def made(bench: StudyContext, name: str) -> Trial:
    [cell] = [cell for cell in bench.scale.list_trials(1) if cell.name == name]
    bench.trial_folder(cell).mkdir(parents=True, exist_ok=True)
    return cell


def corners(length: int, longer: int) -> np.ndarray:
    """[longer, length]: what each new place takes of each old one, ends on ends"""
    at = np.linspace(0, length - 1, longer)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(length)))


def test_positions_are_stretched_as_the_authors_do(bench: StudyContext) -> None:
    cell = made(bench, "as it is, bilinear-corners, 3x")
    before = from_pretrained(bench.encoder(cell)).model.state_dict()["positions.table"].numpy()
    after = (
        resolution.load_resized_encoder(cell, bench).model.state_dict()["positions.table"].numpy()
    )
    assert after.shape[1] == 1 + 6 * 6
    weights = corners(2, 6)
    wanted = np.einsum("yi,xj,ijd->yxd", weights, weights, before[0, 1:].reshape(2, 2, -1))
    np.testing.assert_allclose(after[0, 1:].reshape(6, 6, -1), wanted, atol=1e-6)  # float32
    np.testing.assert_array_equal(after[0, 0], before[0, 0])


def test_interpolations_differ_but_for_the_rest_the_models_are_one(bench: StudyContext) -> None:
    states = [
        resolution.load_resized_encoder(
            made(bench, f"as it is, {method}, 2x"), bench
        ).model.state_dict()
        for method in METHODS
    ]
    for name in states[0]:
        same = [torch.equal(states[0][name], state[name]) for state in states[1:]]
        assert same == [name != "positions.table"] * 2


def test_as_it_is_at_its_own_size_it_is_as_its_run_says(bench: StudyContext) -> None:
    """And measuring reads no test image."""
    own, far = (made(bench, f"as it is, {place}") for place in ("1x", "bilinear-corners, 3x"))
    assert resolution.measure_trial(own, bench) == {}
    [encoder, _] = bench.scale.list_pretrainings(1)
    said = evaluate_on_test(encoder, bench)
    found = resolution.evaluate_trial(own, bench)
    assert found == {name: said[name] for name in ("accuracy", "test images")}
    assert resolution.evaluate_trial(far, bench)["accuracy"] != found["accuracy"]


def test_fine_tuning_starts_from_what_was_resized(bench: StudyContext) -> None:
    cell = made(bench, "fine-tuned, bicubic, 2x")
    measured = resolution.measure_trial(cell, bench)
    assert (measured["steps"], measured["images"]) == (3, 24)
    judged = resolution.evaluate_trial(cell, bench)
    assert judged["test images"] == 359
    run = bench.run_folder(cell)
    start = read_config_yaml(run / "config.yaml")["weights"]
    table = from_pretrained(start).model.state_dict()["positions.table"]
    wanted = resolution.load_resized_encoder(cell, bench).model.state_dict()["positions.table"]
    assert torch.equal(table, wanted)
    assert from_pretrained(run / "model").model.config.resize == "bicubic"
    assert select_trial_data(cell, bench) == "digits"


def test_an_encoder_that_diverged_leaves_nothing_to_ask(bench: StudyContext) -> None:
    lost_bench = replace(bench, folder=Path("nowhere"))
    assert resolution.evaluate_trial(made(bench, "as it is, 1x"), lost_bench) == {"accuracy": None}
    tuned = resolution.measure_trial(made(bench, "fine-tuned, 1x"), lost_bench)
    assert tuned == {"validation": None, "diverged": 1.0}
