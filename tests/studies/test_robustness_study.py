"""What is left of accuracy: arithmetic by hand, and the whole study on digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_study import DIGITS, SETTINGS, go

from patchwords.studies.budget import estimate_trial_cost
from patchwords.studies.page import build_page_blocks, render_markdown_page
from patchwords.studies.paper import robustness
from patchwords.studies.paper.robustness import (
    MINI,
    MODELS,
    PERTURBATION_BY_ROW,
    PERTURBATION_CASES,
    RESNET,
    ROWS,
    STUDY,
    VIT,
    compute_share_kept,
    list_level_names,
)
from patchwords.studies.paper.setups import load_encoder_data
from patchwords.studies.study import StudyContext, TrialMetrics

MADE_UP: dict[str, float] = {"accuracy": 0.5, "classes": 10, "x at 0": 0.5, "x at 5": 0.3}


def test_the_published_numbers_are_as_printed() -> None:
    """Sec. 3.1: half of the patches dropped, 80 %, 90 %."""
    found = {name: f"{100 * value:g}" for name, value in robustness.PAPER.items()}
    for model, printed in ((VIT, "70 60 37"), (RESNET, "0.1 0")):
        rows = [name for name in ROWS if f"{name}, {model}" in found]
        assert rows == [robustness.make_dropped_label(p) for p in (50, 80, 90)][: len(rows)]
        assert [found[f"{row}, {model}"] for row in rows] == printed.split()


def test_both_models_cost_the_same_and_are_trained_alike() -> None:
    bench = StudyContext(Path("nowhere"), MINI, "somewhere")
    vit, resnet = (estimate_trial_cost(cell, bench) for cell in MINI.list_pretrainings(1))
    assert resnet.flops == pytest.approx(vit.flops, rel=1e-3)
    ours, theirs = (MINI.encoders[model] for model in MODELS)
    other = {name for name in theirs if theirs[name] != ours[name]}
    assert other == {"model", "steps", "warmup_steps"}
    assert theirs["warmup_steps"] == round(theirs["steps"] / 10)


def test_the_lead_over_chance_that_is_left() -> None:
    """From 50 % to 30 % and 10 %, with ten classes: half of 40 points are left, and nothing."""
    assert compute_share_kept(MADE_UP, ["x at 5"]) == pytest.approx(0.5)
    assert compute_share_kept({**MADE_UP, "x at 9": 0.1}, ["x at 5", "x at 9"]) == pytest.approx(
        0.25
    )
    assert compute_share_kept(MADE_UP, ["x at 0"]) == pytest.approx(1.0)
    assert compute_share_kept({**MADE_UP, "accuracy": 0.1}, ["x at 5"]) is None  # no lead to lose
    assert compute_share_kept({"accuracy": None}, ["x at 5"]) is None


def test_the_level_of_no_change_is_not_counted() -> None:
    assert list_level_names({**MADE_UP, "x-y at 0": 1.0, "x-y at 1": 0.0}, "x") == ["x at 5"]


def made_up(clean: float, dropped: float) -> TrialMetrics:
    """Of one model, any case: every disturbance leaves `dropped` at both of its levels."""
    each = {
        f"{name} at {level}": dropped for name in PERTURBATION_BY_ROW.values() for level in (1, 2)
    }
    start = {f"{name} at 0": clean for name in PERTURBATION_BY_ROW.values()}
    there = {name: value for one in PERTURBATION_BY_ROW.values() for name, value in {**start, **each}.items()
             if name.startswith(f"{one} at ")}  # fmt: skip
    grids = {"permutation at 4": 0.2, "permutation at 8": 0.4, "permutation at 16": 0.3}
    occluded = {f"occlusion-random at {percent}": percent / 100 for percent in (50, 80, 90)}
    return {"accuracy": clean, "classes": 10, "own grid": 8, **there, **grids, **occluded}


def test_every_row_of_the_table_is_read_off_its_own_cells() -> None:
    numbers = {VIT: made_up(0.6, 0.35), RESNET: made_up(0.5, 0.2)}
    found = {f"{model}, {case}": numbers[model] for model in MODELS for case in PERTURBATION_CASES}
    values = robustness.compute_values({}, found)
    assert values["accuracy as it is, ViT"] == 0.6
    assert values["accuracy, 80 % of patches dropped, ResNet"] == 0.8
    assert values["kept, grey patch, ViT"] == pytest.approx(0.5)
    assert values["kept, adversarial patch, ResNet"] == pytest.approx(0.25)
    assert values[f"{robustness.LARGER_TILES}, ViT"] == pytest.approx(0.2)
    assert values[f"{robustness.OWN_PATCH_TILES}, ViT"] == pytest.approx(0.6)
    assert values[f"{robustness.SMALLER_TILES}, ViT"] == pytest.approx(0.4)
    assert set(values) <= {f"{row}, {model}" for row in ROWS for model in MODELS}
    for claim in STUDY.claims:
        assert {*claim.more, *claim.less} <= set(values)


def test_what_diverged_has_no_values() -> None:
    numbers: dict[str, TrialMetrics] = {VIT: made_up(0.6, 0.35), RESNET: {"accuracy": None}}
    found = {f"{model}, {case}": numbers[model] for model in MODELS for case in PERTURBATION_CASES}
    values = robustness.compute_values({}, found)
    assert {v for name, v in values.items() if name.endswith(RESNET)} == {None}
    assert None not in {v for name, v in values.items() if name.endswith(VIT)}


@pytest.fixture(scope="module")
def results(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The study with two tiny ViTs, of which the first does not know where its patches are."""
    settings = {"verb": "finetune", **SETTINGS, "lr": 0.01, "steps": 200, "eval_every": 200}
    settings |= {"batch_size": 32, "random_crop": 1.0, "flip": False}
    mini = replace(
        *(MINI,),
        **{"data": DIGITS, "settings": {"images": 97}, "seeds": 1},
        encoders={VIT: {**settings, "position": "none"}, RESNET: settings},
    )
    study = replace(STUDY, scales={"mini": mini, "full": mini})
    folder = tmp_path_factory.mktemp("robust") / "study"
    found = go(folder, study)
    bench = StudyContext(folder, mini, "digits")
    parts = load_encoder_data(mini.list_trials(1)[0], bench).splits
    return {**found, "splits": {name: len(part) for name, part in parts.items()}}


def test_the_whole_study_on_digits(results: dict[str, Any]) -> None:
    values = {one["label"]: one["values"][0] for one in results["labels"]}
    assert list(values) == [
        f"{row}, {model}"
        for model in MODELS
        for row in ROWS
        if model == VIT or row in ROWS[:-3]
    ]  # fmt: skip
    assert values["accuracy as it is, ViT"] > 0.4
    # without positions a ViT does not see that its own patches are shuffled
    assert values[f"{robustness.OWN_PATCH_TILES}, ViT"] == pytest.approx(1.0)
    assert values["kept, tiles shuffled, ResNet"] < 0.9
    cells = {one["name"]: one for one in results["cells"]}
    occluded = cells["ViT, occlusion"]
    assert (occluded["test images"], occluded["classes"]) == (97, 10)
    assert occluded["occlusion-salient at 0"] == occluded["accuracy"]
    assert occluded["occlusion-salient at 100"] == occluded["occlusion-random at 100"] < 0.2
    assert results["compute"]["trainings"] == 2
    assert results["splits"]["test"] > 300


def test_its_page_and_its_figures(results: dict[str, Any]) -> None:
    files = STUDY.draw_figures(results)
    assert {name for name in files if name.endswith(".png")} == {
        f"{name}.png" for name in robustness.FIGURE_CASES
    }
    page = render_markdown_page(STUDY.title, build_page_blocks(STUDY, results, (), "command"))
    assert "| accuracy, 50 % of patches dropped |" in page
    assert "(70.0) |" in page
    assert f"| ViT (ViT-mu/4) | {results['pretrainings'][0]['parameters']:,} | 6,400 |" in page


def test_what_diverged_is_not_drawn(results: dict[str, Any]) -> None:
    lost = {"cells": [{**one, "accuracy": None} for one in results["cells"]]}
    assert robustness.build_perturbation_curve(lost, VIT, "permutation", "permutation") is None
    curve = robustness.build_perturbation_curve(results, VIT, "permutation", "permutation")
    assert curve.x == [1, 2, 4, 8]
    assert curve.y[0] == 100 * results["cells"][0]["accuracy"]
