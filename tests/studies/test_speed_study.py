"""Speed and memory over the size of the image: known powers and ratios, and the whole command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch import OutOfMemoryError

from patchwords.benchmark.clock import ThroughputResult
from patchwords.cli import main
from patchwords.models.cost import count_macs
from patchwords.models.zoo import resolve_model
from patchwords.planning.memory import OptimizerSpec, ParallelLayout, estimate_memory_footprint
from patchwords.studies.budget import estimate_trial_cost
from patchwords.studies.page_blocks import PageTable, PageText
from patchwords.studies.paper import analysis as answering
from patchwords.studies.paper.speed import (
    BATCHES,
    FULL_MODELS,
    IMAGE_SIZES,
    MINI_MODELS,
    MODEL_PAIRS,
    RESNET_POWER,
    STUDY,
    VIT_POWER,
    VIT_POWER_EXCESS,
    build_tables,
    compute_values,
    draw_study_figures,
    is_vit,
    make_batch_label,
    make_speed_label,
    make_speed_trial_name,
    measure_trial,
)
from patchwords.studies.study import SCALES, Scale, ScaleName, StudyContext, Trial, TrialMetrics

GIB = 2**30


def bench_of(folder: Path, scale: ScaleName = "mini") -> StudyContext:
    return StudyContext(folder, STUDY.scales[scale], None, None, "cpu", "fp32")


def test_the_models_are_those_of_the_figure_and_pairs_are_alike() -> None:
    vits = ["ViT-B/32", "ViT-L/32", "ViT-B/16", "ViT-L/16", "ViT-H/14"]
    assert list(FULL_MODELS) == [*vits, "BiT-R50x1", "BiT-R50x2", "BiT-R152x4"]
    for pair in MODEL_PAIRS:
        assert {*pair} <= {*MINI_MODELS} & {*FULL_MODELS}
        ours, theirs = (count_macs(resolve_model(model).config) for model in pair)
        assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("scale", SCALES)
def test_every_size_is_one_that_the_model_takes(scale: ScaleName, tmp_path: Path) -> None:
    bench = bench_of(tmp_path, scale)
    cells = bench.scale.list_trials(1)
    assert len(cells) == len(IMAGE_SIZES) * len({cell.settings["model"] for cell in cells})
    for cell in cells:
        [side] = cell.settings["image_size"]
        resolve_model(cell.settings["model"]).config.with_settings(image_size=side)
        assert abs(side - int(cell.name.split()[-2])) <= 7
        assert estimate_trial_cost(cell, bench).flops == 0


def made_up(scale: Scale) -> dict[str, TrialMetrics]:
    """ViTs take 2^-20 s x side^2.25, ResNets twice side^2; ViTs fit four times as many images."""
    found: dict[str, TrialMetrics] = {}
    for name, own in scale.grid.items():
        [side] = own["image_size"]
        vit = is_vit(own["model"])
        found[name] = {
            "images/s": 2**20 * side**-2.25 if vit else 2**19 * side**-2.0,
            "at a time": 4,
            "share of peak": 0.25,
            "macs": side**2.5,
            "side": side,
            "largest batch": 64.0 if vit else 16.0,
            "free bytes": 3.0 * GIB,
            "threads": 2,
            "bf16": 1.0,
        }
    return found


@pytest.mark.parametrize("scale", SCALES)
def test_powers_and_ratios_are_those_that_were_put_in(scale: ScaleName) -> None:
    one = STUDY.scales[scale]
    labels = STUDY.choose_trials(one.grid, {})
    values = compute_values(labels, made_up(one))
    assert values[VIT_POWER] == pytest.approx(2.25)
    assert values[RESNET_POWER] == pytest.approx(2)
    assert values[VIT_POWER_EXCESS] == pytest.approx(0.25)
    for pair in MODEL_PAIRS:
        ratio = 1 - 0.25 * sum(map(math.log2, IMAGE_SIZES)) / len(IMAGE_SIZES)
        assert values[make_speed_label(*pair)] == pytest.approx(ratio)
        assert values[make_batch_label(*pair)] == pytest.approx(2)
    for claim in STUDY.claims:
        assert set(claim.more) | set(claim.less) <= set(values)
    assert set(STUDY.units) == set(values)


def test_what_fits_nothing_has_no_ratio() -> None:
    found = made_up(STUDY.scales["mini"])
    name = make_speed_trial_name("BiT-R50x2", 224)
    found[name] = {**found[name], "largest batch": 0}
    values = compute_values(STUDY.choose_trials(STUDY.scales["mini"].grid, {}), found)
    assert values[make_batch_label(*MODEL_PAIRS[1])] is None
    assert values[make_batch_label(*MODEL_PAIRS[0])] == 2


def test_the_best_of_the_batches_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the memory is that of a training step with Adam."""
    rows = [
        ThroughputResult("fp32", 1, 10.0, 0.1),
        ThroughputResult("fp32", 4, 30.0, 0.3),
        ThroughputResult("fp32", 16, skipped=""),
    ]
    monkeypatch.setattr(answering, "measure_inference_speeds", lambda subject, seconds: rows)
    monkeypatch.setattr("patchwords.device.free_memory", lambda device: 7 * GIB)
    name = make_speed_trial_name("ViT-S/32", 384)
    cell = next(one for one in STUDY.scales["mini"].list_trials(1) if one.name == name)
    found = measure_trial(cell, bench_of(tmp_path))
    assert (found["images/s"], found["at a time"], found["share of peak"]) == (30, 4, 0.3)
    shape = resolve_model("ViT-S/32").config.with_settings(image_size=384)
    assert (found["side"], found["macs"]) == (384, count_macs(shape))
    step = estimate_memory_footprint(
        shape, ParallelLayout(1, "ddp", False), OptimizerSpec("adamw", False, "fp32")
    )
    most = int(found["largest batch"] or 0)
    assert step.total(most) <= 0.9 * 7 * GIB < step.total(most + 1)


def test_a_small_model_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchwords.studies.paper.speed.SECONDS", 0.01)
    monkeypatch.setattr(answering, "measure_matmul_peak", lambda device: 1e15)
    settings = {"verb": "none", "model": "ViT-mu/16", "image_size": (64,)}
    found = measure_trial(Trial("tiny", 0, settings), bench_of(tmp_path))
    assert found["at a time"] in BATCHES["cpu"]
    assert (found["images/s"] or 0) > 0
    assert 0 < (found["share of peak"] or 0) < 1


def test_a_gpu_that_is_full_is_asked_fewer_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(subject: Any, device: Any, peak: float, seconds: float) -> list[ThroughputResult]:
        if max(subject.inference_batches) > 1:
            raise OutOfMemoryError("full")
        return [ThroughputResult("fp32", batch, 1.0) for batch in subject.inference_batches]

    monkeypatch.setattr(answering, "measure_inference_throughput", measured)
    bench = bench_of(tmp_path)
    cell = bench.scale.list_trials(1)[0]
    from patchwords.device import choose_device

    device = choose_device("cpu", "fp32")
    subject = answering.build_timing_workload(cell, bench, device, (1, 4, 16))
    assert [row.batch for row in answering.measure_inference_speeds(subject, 0.1)] == [1]
    subject = answering.build_timing_workload(cell, bench, device, (4, 16))
    with pytest.raises(OutOfMemoryError):
        answering.measure_inference_speeds(subject, 0.1)


def results_of(repeats: int) -> dict[str, Any]:
    found = made_up(STUDY.scales["mini"])
    cells = [
        # 1 % faster in every repeat
        {"name": name, "seed": seed, **numbers, "images/s": (numbers["images/s"] or 0) * 1.01**seed}
        for seed in range(repeats)
        for name, numbers in found.items()
    ]
    grid = STUDY.scales["mini"].grid
    return {"cells": cells, "grid": grid, "device": "some processor", "seeds": repeats}


def test_the_page_has_speeds_powers_and_batches() -> None:
    where, speeds, _, powers, memory, batches = build_tables(results_of(2))
    assert isinstance(where, PageText)
    assert "on some processor with 2 threads in bf16" in where.text
    assert isinstance(memory, PageText)
    assert "3.0 to 3.0 GiB" in memory.text
    assert isinstance(speeds, PageTable)
    assert isinstance(powers, PageTable)
    assert isinstance(batches, PageTable)
    first = 2**20 * 64**-2.25
    half = 0.005 * first * math.sqrt(2)
    assert speeds.rows[0][:2] == ("ViT-S/32", f"{1.005 * first:.1f} ± {half:.1f}")
    assert powers.rows[0] == ("ViT-S/32", "2.25", "2.50", "25%")
    assert batches.rows[-1] == ("BiT-R50x2", *["16"] * 5)


def test_the_figure_is_drawn_without_what_does_not_fit() -> None:
    results = results_of(1)
    results["cells"][0]["largest batch"] = 0
    assert set(draw_study_figures(results)) == {"speed.png", "speed.svg"}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--data digits", "speed at scale mini learns nothing, so it has no use for --data"),
        ("--transfer digits", "has no use for --transfer digits"),
        ("--jobs 2", "--jobs 2: speed at scale mini measures time, one cell after the other"),
        ("--budget 5", "--budget 5: speed at scale mini trains nothing that it could trim"),
    ],
)
def test_what_it_has_no_use_for_is_refused_in_a_line(
    words: str,
    wanted: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # what is not refused must not run for minutes
    monkeypatch.setattr("patchwords.studies.runner.run_workers", lambda *_: None)
    output = tmp_path / "o"
    assert main(["study", "speed", "--output", str(output), *words.split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert wanted in line
    assert not output.exists()


def test_the_whole_command_needs_no_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With speeds that fall as the multiplications grow: 1e12 of them a second."""
    monkeypatch.setattr(
        answering,
        "measure_inference_speeds",
        lambda subject, seconds: [
            ThroughputResult("fp32", 4, 1e12 / count_macs(subject.shape), 0.5)
        ],
    )
    monkeypatch.setattr("patchwords.device.free_memory", lambda device: 7 * GIB)
    monkeypatch.setattr(
        "patchwords.benchmark.clock.reset_peak_memory", lambda device: True
    )  # it is slow
    words = ["study", "speed", "--seeds", "2", "--device", "cpu", "--output", str(tmp_path / "o")]
    assert main(words) == 0
    results = json.loads((tmp_path / "o" / "results.json").read_text())
    assert results["data"] is None
    words_of = {claim["text"]: claim["verdict"] for claim in results["claims"]}
    assert list(words_of.values()) == ["agrees"] * 6
    page = (tmp_path / "o" / "page.md").read_text()
    assert "30 trials x 2 repeats." in page
    assert "Nothing was trained." in page
    capsys.readouterr()
    assert main(words) == 0  # what is done stays
    assert json.loads((tmp_path / "o" / "results.json").read_text()) == results


def test_the_list_and_the_plan_say_that_nothing_is_learned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["studies"]) == 0
    out = capsys.readouterr().out
    [line] = [one for one in out.splitlines() if "30 trials x 3 seeds, no training" in one]
    assert line.strip().endswith("about ten minutes on two cores; needs no images")
    assert main(["study", "speed", "--plan"]) == 0
    assert "speed trains nothing" in capsys.readouterr().out
