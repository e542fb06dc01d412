"""Axial attention: the speeds are of the models that are trained, and the ratio is per MAC."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchwords.models.cost import count_macs, count_parameters
from patchwords.studies.budget import build_trial_workload, estimate_trial_cost
from patchwords.studies.page_blocks import PageTable, PageText
from patchwords.studies.paper import analysis as answering
from patchwords.studies.paper import axial
from patchwords.studies.paper import axial as axial_page
from patchwords.studies.paper.axial import compute_macs_per_image
from patchwords.studies.study import SCALES, VERB, Scale, ScaleName, StudyContext, Trial


def bench_of(scale: ScaleName | Scale, folder: Path = Path("nowhere")) -> StudyContext:
    one = scale if isinstance(scale, Scale) else axial.STUDY.scales[scale]
    return StudyContext(folder, one, "somewhere", None, "cpu", "fp32")


@pytest.mark.parametrize("scale", SCALES)
def test_the_control_costs_what_the_axes_cost(scale: ScaleName) -> None:
    bench = bench_of(scale)
    costs = {cell.name: estimate_trial_cost(cell, bench) for cell in bench.scale.list_trials(1)}
    assert costs[axial.DEEPER_VIT].macs == pytest.approx(
        costs[axial.AXIAL_SMALL_PATCHES].macs, rel=0.01
    )
    assert costs[axial.AXIAL_SMALL_PATCHES].macs > 1.7 * costs[axial.VIT_SMALL_PATCHES].macs
    assert costs[axial.SPEED_TRIAL].flops == 0
    vits = set(axial.MODELS) - {axial.RESNET, axial.AXIAL_RESNET}
    assert len({costs[name].images for name in vits}) == 1
    if scale == "mini":
        for name in (axial.RESNET, axial.AXIAL_RESNET):
            assert costs[name].flops == pytest.approx(
                costs[axial.VIT_SMALL_PATCHES].flops, rel=0.01
            )


def test_the_full_scale_has_the_models_of_the_figure() -> None:
    """Parameters of the doc of models: 171,620,584 with 1,000 classes; here 18,000."""
    bench = bench_of("full")
    cells = {cell.name: cell for cell in bench.scale.list_trials(1)}
    big = build_trial_workload(cells[axial.AXIAL_SMALL_PATCHES], bench)
    assert big is not None
    assert count_parameters(big.config) - 171_620_584 == 17_000 * 769
    assert {
        axial_page.format_trial_model({"grid": axial.FULL_GRID}, name) for name in axial.MODELS
    } == {
        "vit-b32-jft",
        "vit-b16-jft",
        "vit-b16-jft, 23 blocks",
        "Axial-ViT-B/32",
        "Axial-ViT-B/16",
        "r50x1-jft",
        "AxialResNet-50",
    }


def test_the_speeds_are_of_the_models_that_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in turn, in every round; the median counts."""
    asked: list[tuple[int, int]] = []

    def at_once(subject: Any, seconds: float) -> list[Any]:
        config = subject.create().config if len(asked) < len(axial.MODELS) else subject.shape
        asked.append(
            (count_macs(config.with_settings(num_classes=10)), subject.inference_batches[0])
        )
        row = type("Row", (), {"images_per_second": float(len(asked))})
        return [row]

    monkeypatch.setattr(answering, "measure_inference_speeds", at_once)
    monkeypatch.setattr(axial, "ROUNDS", 3)
    bench = bench_of("mini")
    [clock] = [cell for cell in bench.scale.list_trials(1) if cell.name == axial.SPEED_TRIAL]
    found = axial.measure_trial(clock, bench)
    trained = [
        estimate_trial_cost(cell, bench).macs
        for cell in bench.scale.list_trials(1)
        if cell != clock
    ]
    assert asked == [(one, axial.TIMED_BATCH) for one in trained] * axial.ROUNDS
    middle = 1 + len(trained)  # of 1, 8 and 15, for the first
    assert found == {axial.make_rate_label(name): middle + i for i, name in enumerate(axial.MODELS)}


def test_a_tiny_model_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axial, "SECONDS", 0.01)
    monkeypatch.setattr(answering, "measure_matmul_peak", lambda device: 1e12)
    own = {"model": "ViT-mu/4", "image_size": (8,)}
    scale = replace(
        axial.MINI,
        settings={},
        grid={"one": own, axial.SPEED_TRIAL: {VERB: "none"}},
        verb="finetune",
    )
    [_, clock] = scale.list_trials(1)
    found = axial.measure_trial(clock, bench_of(scale, tmp_path))
    assert list(found) == ["one: images/s"]
    assert found["one: images/s"] > 0


def numbers() -> dict[str, dict[str, float | None]]:
    """A ResNet of 100 MACs at 50 images/s; AxialResNet of 80 at 10: 5000 and 800 MACs/s."""
    found: dict[str, dict[str, float | None]] = {
        name: {"accuracy": 0.5, "flops": 6.0 * 100 * 7, "images": 7.0} for name in axial.MODELS
    }
    found[axial.AXIAL_RESNET]["flops"] = 6.0 * 80 * 7
    rates = {axial.make_rate_label(name): 50.0 for name in axial.MODELS}
    found[axial.SPEED_TRIAL] = {**rates, axial.make_rate_label(axial.AXIAL_RESNET): 10.0}
    return found


def test_slower_is_counted_for_a_multiplication() -> None:
    labels = axial.choose_trials(axial.MINI_GRID, {})
    assert set(labels) == set(axial.MODELS)
    assert compute_macs_per_image(numbers()[axial.RESNET]) == 100
    read = axial.compute_values(labels, numbers())
    assert read[axial.SLOWDOWN_PER_MAC] == pytest.approx(math.log2(5000 / 800))
    assert read[axial.make_rate_label(axial.RESNET)] == 50
    assert read[axial.RESNET] == 0.5
    for claim in axial.STUDY.claims:
        assert set(claim.more) | set(claim.less) <= set(read)
    assert set(axial.STUDY.units) <= set(read)
    diverged = {**numbers(), axial.RESNET: {"validation": None, "diverged": 1.0}}
    assert axial.compute_values(labels, diverged)[axial.SLOWDOWN_PER_MAC] is None
    assert axial.compute_values(labels, diverged)[axial.RESNET] is None


def made_up(seeds: int) -> dict[str, Any]:
    found = numbers()
    values = axial.compute_values(axial.choose_trials(axial.MINI_GRID, {}), found)
    return {
        "labels": [
            {"label": label, "values": [value] * seeds, "over_seeds": {"mean": value}}
            for label, value in values.items()
        ],
        "cells": [
            {"name": name, "seed": seed, "parameters": 9.0, **found[name]}
            for seed in range(seeds)
            for name in axial.MINI_GRID
        ],
        "grid": axial.MINI_GRID,
        "device": "some processor",
        "seeds": seeds,
        "quantity": axial.STUDY.quantity,
    }


def test_the_page_has_what_each_costs_and_what_the_axes_bring() -> None:
    text, table, beyond = axial.build_tables(made_up(3))
    assert isinstance(text, PageText)
    assert isinstance(table, PageTable)
    assert isinstance(beyond, PageText)
    assert "on some processor" in text.text
    assert ("AxialResNet: AxialResNet-14", "9", "0.0", "0.0") in table.rows
    assert beyond.text.endswith("which the figure lacks: +0.0 (+0.0 to +0.0).")


def test_the_figure_is_drawn_without_what_diverged() -> None:
    results = made_up(2)
    for one in results["labels"]:
        if one["label"] == axial.RESNET:
            one["over_seeds"] = None
    assert set(axial.draw_study_figures(results)) == {"axial.png", "axial.svg"}


def test_a_cell_that_trains_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axial, "train_and_measure", lambda trial, context: {"steps": 1.0})
    assert axial.measure_trial(Trial("a", 0, {VERB: "finetune"}), bench_of("mini")) == {
        "steps": 1.0
    }
