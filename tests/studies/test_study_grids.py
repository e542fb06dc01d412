"""Every study, as it stands: its grid builds at both scales, and what it says fits together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchwords.errors import ConfigError
from patchwords.models.build import build_model
from patchwords.planning.hardware import find_hardware
from patchwords.studies.budget import (
    MODEL_SETTING_NAMES,
    build_trial_workload,
    estimate_trial_cost,
    replace_encoder_by_shape,
    resolve_model_config,
)
from patchwords.studies.paper import head_type, position_embeddings
from patchwords.studies.registry import STUDIES, load_study
from patchwords.studies.study import (
    ENCODER,
    SCALES,
    VERB,
    ScaleName,
    Study,
    StudyContext,
    collect_accuracies,
    scale_step_settings,
)
from patchwords.studies.training import build_training_config

EACH = pytest.mark.parametrize("study", [load_study(name) for name in STUDIES], ids=list(STUDIES))
SCALE = pytest.mark.parametrize("scale", SCALES)


def bench_of(study: Study, scale: ScaleName) -> StudyContext:
    return StudyContext(Path("nowhere"), study.scales[scale], "somewhere", "elsewhere")


@EACH
@SCALE
def test_every_cell_is_a_run_and_a_model(study: Study, scale: ScaleName) -> None:
    bench = bench_of(study, scale)
    cells = [*bench.scale.list_pretrainings(2), *bench.scale.list_trials(2)]
    assert len({bench.trial_folder(cell) for cell in cells}) == len(cells)
    for cell in cells:
        if cell.seed or cell.settings[VERB] == "none":
            continue
        config = build_training_config(replace_encoder_by_shape(cell, bench.scale), bench)
        config.check()
        shape = resolve_model_config(config, bench.scale.train_data.classes)
        if scale == "mini":
            build_model(shape)
        of_model = [
            name for name in cell.settings if name in MODEL_SETTING_NAMES and hasattr(shape, name)
        ]
        own = {name: getattr(shape, name) for name in of_model}
        said = {name: cell.settings[name] for name in own}
        assert {**own, "image_size": 0} == {**said, "image_size": 0}


@EACH
@SCALE
def test_a_cell_says_only_what_is_its_own(study: Study, scale: ScaleName) -> None:
    one = study.scales[scale]
    for own in one.grid.values():
        assert not own.keys() & one.settings.keys()
        assert own.get(ENCODER) in {None, *one.encoders}


@EACH
def test_claims_and_the_paper_are_about_labels_that_there_are(study: Study) -> None:
    for scale in study.scales.values():
        labels = study.choose_trials(scale.grid, {name: [0.5] for name in scale.grid})
        assert set(labels.values()) <= set(scale.grid)
        assert set(scale.untested) <= {claim.text for claim in study.claims}
        if study.compute_values is not collect_accuracies:
            continue  # what it reads takes numbers
        assert set(study.paper) <= set(labels)
        for claim in study.claims:
            for one in (claim, *claim.controls, *claim.parts):
                assert set(one.more) | set(one.less) <= set(labels)
                assert not set(one.more) & set(one.less)
        if study.layout is not None:
            rows, columns = study.layout
            assert set(labels) <= {f"{row}, {column}" for row in rows for column in columns}


def test_table_8_is_as_printed() -> None:
    """Three digits of each number, from Appendix D.4; and what the claims quote of it."""
    paper = position_embeddings.PAPER
    printed = {"none": "614", "1-D": "642 640 643", "2-D": "640 640 640", "relative": "640"}
    for row, numbers in printed.items():
        found = [f"{1000 * value:.0f}" for name, value in paper.items() if name.startswith(row)]
        assert found == numbers.split()
    for claim, points in zip(position_embeddings.CLAIMS, (2.7, -0.2, -0.2, -0.1, 0.1), strict=True):
        more, less = (
            sum(paper[name] for name in names) / len(names) for names in (claim.more, claim.less)
        )
        assert round(100 * (more - less), 1) == points
        assert claim.paper.startswith(f"{points:+.1f} points")


def test_the_cost_of_the_papers_own_setting() -> None:
    """Table 6 has 224 exaFLOPs for ViT-B/16, 7 epochs of JFT."""
    study = load_study("position-embeddings")
    bench = bench_of(study, "full")
    h100 = find_hardware("h100")
    costs = {
        cell.name: estimate_trial_cost(cell, bench, h100) for cell in bench.scale.list_trials(1)
    }
    usual = costs["1-D, stem"]
    assert usual.flops / 1e18 == pytest.approx(224, rel=0.01)
    assert usual.device_days == pytest.approx(usual.flops / (0.4 * 989.5e12) / 86_400)
    assert usual.images == pytest.approx(7 * 303_000_000, abs=4096)  # whole batches
    # 12 tables in the place of one, 197 tokens of 768
    assert costs["1-D, every layer"].parameters - usual.parameters == 11 * 197 * 768
    assert costs["none, stem"].parameters == usual.parameters - 197 * 768


def test_a_mini_cell_sees_the_images_that_it_says() -> None:
    study = load_study("head-type")
    bench = bench_of(study, "mini")
    training = build_trial_workload(bench.scale.list_trials(1)[0], bench)
    assert training is not None
    assert (training.seen, training.steps) == (1500 * 64, 1500)


def rates_of(**validation: list[float | None]) -> dict[str, str]:
    grid: dict[str, dict[str, Any]] = {
        f"{head}{lr}": {"classifier": head, "lr": lr} for head in ("token", "gap") for lr in (1, 2)
    }
    return head_type.choose_trials(grid, validation)


def test_each_head_has_its_own_best_rate() -> None:
    found = rates_of(token1=[0.1, 0.2], token2=[0.3, 0.1], gap1=[0.9, 0.8], gap2=[0.1, 0.1])
    assert found == {
        head_type.TOKEN_BEST_RATE: "token2",
        head_type.GAP_SAME_RATE: "gap2",
        head_type.GAP_BEST_RATE: "gap1",
    }


def test_a_rate_that_diverged_once_is_out_and_of_equal_ones_the_smallest_is_taken() -> None:
    found = rates_of(token1=[0.5, 0.5], token2=[0.9, None], gap1=[0.5, 0.5], gap2=[0.6, 0.4])
    assert found[head_type.TOKEN_BEST_RATE] == "token1"
    assert found[head_type.GAP_BEST_RATE] == "gap1"


def test_a_shorter_cell_keeps_its_shares() -> None:
    settings = {"steps": 3000, "warmup_steps": 300, "eval_every": 429, "lr": 0.1}
    shorter = {"steps": 1000, "warmup_steps": 100, "eval_every": 143, "lr": 0.1}
    assert scale_step_settings(settings, 1 / 3) == shorter
    assert scale_step_settings(settings, 1) == settings


def test_an_unknown_study_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'position-embeddings'"):
        load_study("position-embedings")
