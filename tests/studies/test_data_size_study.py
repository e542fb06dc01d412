"""Data size: gaps and slopes by hand, Table 5 as printed, and a cell judged both ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_study import BRIEF, DIGITS, go

from patchwords.studies.budget import build_trial_workload
from patchwords.studies.paper.data_size import (
    FULL,
    GROWS,
    LARGE_VIT_GAIN,
    LARGE_VIT_NAME,
    MINI,
    RESNET_LEAD_FEWEST_IMAGES,
    RESNET_NAME,
    SMALL_VIT_LEAD_FEWEST_IMAGES,
    SMALL_VIT_NAME,
    STUDY,
    TABLE_5,
    VIT_GAIN,
    VIT_GAIN_FEWSHOT,
    VIT_LEAD_MOST_IMAGES,
    build_tables,
    compute_values,
    draw_study_figures,
    make_data_size_label,
    parse_data_size_label,
)
from patchwords.studies.paper.setups import FEWSHOT_LABEL
from patchwords.studies.registry import load_study
from patchwords.studies.study import StudyContext, TrialMetrics

SHORT = {**BRIEF, "steps": 6, "eval_every": 6, "warmup_steps": 1}
SIZES = (100, 400, 3200)  # two doublings, then three
GAPS = (
    RESNET_LEAD_FEWEST_IMAGES,
    VIT_LEAD_MOST_IMAGES,
    SMALL_VIT_LEAD_FEWEST_IMAGES,
    VIT_GAIN,
    VIT_GAIN_FEWSHOT,
    LARGE_VIT_GAIN,
)
ACCURACIES = {
    SMALL_VIT_NAME: (0.30, 0.32, 0.35),
    LARGE_VIT_NAME: (0.28, 0.32, 0.38),  # gains 0.04 in two doublings, 0.06 in three: 0.02 in each
    RESNET_NAME: (0.40, 0.40, 0.40),
}


def found(apart: bool = True, lost: str = "") -> dict[str, TrialMetrics]:
    cells: dict[str, TrialMetrics] = {}
    for model, row in ACCURACIES.items():
        for images, value in zip(SIZES, row, strict=True):
            few = {FEWSHOT_LABEL: 1 - value} if apart else {}
            cells[make_data_size_label(model, images)] = {"accuracy": value, **few}
    if lost:
        cells[lost] = {"accuracy": None}
    return cells


def test_gaps_at_the_ends_and_slopes_between() -> None:
    cells = found()
    values = compute_values({name: name for name in cells}, cells)
    assert values[RESNET_LEAD_FEWEST_IMAGES] == pytest.approx(0.12)
    assert values[VIT_LEAD_MOST_IMAGES] == pytest.approx(-0.02)
    assert values[SMALL_VIT_LEAD_FEWEST_IMAGES] == pytest.approx(0.02)
    assert values[VIT_GAIN] == pytest.approx(0.02)
    assert values[VIT_GAIN_FEWSHOT] == pytest.approx(-0.02)
    assert values[LARGE_VIT_GAIN] == pytest.approx(0.01)
    assert values[GROWS] == pytest.approx(0.06)
    assert values[f"{make_data_size_label(LARGE_VIT_NAME, 400)}, {FEWSHOT_LABEL}"] == pytest.approx(
        0.68
    )


def test_where_few_shots_are_all_they_are_the_accuracy() -> None:
    cells = found(apart=False)
    values = compute_values({name: name for name in cells}, cells)
    assert values[VIT_GAIN_FEWSHOT] == values[VIT_GAIN]
    assert not [
        label for label in values if label.endswith(f", {FEWSHOT_LABEL}") and "gains" not in label
    ]


def test_a_cell_that_diverged_takes_its_gaps_with_it() -> None:
    cells = found(lost=make_data_size_label(LARGE_VIT_NAME, 400))
    values = compute_values({name: name for name in cells}, cells)
    assert values[VIT_GAIN] is None
    assert values[RESNET_LEAD_FEWEST_IMAGES] == pytest.approx(0.12)  # at the ends all are there


def test_every_size_has_every_model() -> None:
    for scale, models, sizes in ((MINI, 4, 3), (FULL, 8, 4)):
        names = [parse_data_size_label(name) for name in scale.grid]
        assert len({model for model, _ in names}) == models
        assert len({images for _, images in names}) == sizes
        assert len(names) == models * sizes
        for name, own in scale.grid.items():
            assert own.get("train_images", 303_000_000) == parse_data_size_label(name)[1]


def test_every_size_costs_as_much() -> None:
    """Fewer images come more often."""
    bench = StudyContext(Path("nowhere"), FULL, "somewhere", "elsewhere")
    for cell in FULL.list_trials(1):
        training = build_trial_workload(cell, bench)
        assert training is not None
        assert training.seen == pytest.approx(7 * 303_000_000, abs=4096)  # whole batches
        assert training.images == parse_data_size_label(cell.name)[1]


def test_table_5_is_as_printed() -> None:
    rows = {row[0]: row[1:] for row in build_tables({})[1].rows}  # type: ignore[union-attr]
    assert rows["ViT-L/16"] == ("76.53", "85.15", "87.12")
    assert rows["L/16 less B/16"] == ("-1.38", "+1.18", "+2.97")
    assert rows["L/32 less B/32"] == ("-2.22", "-0.29", "+3.64")
    claims = {claim.more: claim.paper for claim in STUDY.claims}
    assert "+1.4 points" in claims[SMALL_VIT_LEAD_FEWEST_IMAGES,]
    assert "-1.4 points after ImageNet, +1.2 after ImageNet-21k, +3.0" in claims[LARGE_VIT_GAIN,]
    assert len(TABLE_5) == 4


def test_digits_from_one_end_to_the_other(tmp_path: Path) -> None:
    """Three models that are one, two sizes: each is judged by test images and by few shots."""
    own: dict[str, Any] = {
        make_data_size_label(model, images): {"train_images": images}
        for model in (SMALL_VIT_NAME, LARGE_VIT_NAME, RESNET_NAME)
        for images in (50, 200)
    }
    scale = replace(MINI, data=DIGITS, transfer=DIGITS, settings=SHORT, grid=own, seeds=1)
    study = replace(load_study("data-size"), scales={"mini": scale, "full": scale})
    results = go(tmp_path, study, transfer="digits")
    for cell in results["cells"]:
        assert cell["test images"] == 359
        assert 0 < cell[FEWSHOT_LABEL] < 1
        assert cell["accuracy"] != cell[FEWSHOT_LABEL]
    by_label = {one["label"]: one["values"] for one in results["labels"]}
    assert by_label[RESNET_LEAD_FEWEST_IMAGES] == [0]  # of one model less itself
    drawn = draw_study_figures(results)
    assert drawn["data-size.png"].startswith(b"\x89PNG")
    splits = tmp_path / "cells/resnet-50-0/run/splits.csv"
    assert sum(line.split(",")[2] == "train" for line in splits.read_text().splitlines()) == 50
