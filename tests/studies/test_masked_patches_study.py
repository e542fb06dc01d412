"""Masked patches: what is compared with what, and the paper's numbers as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchwords.studies.budget import TrialCost, estimate_trial_cost
from patchwords.studies.paper import masked_patches
from patchwords.studies.paper.masked_patches import (
    LONG_SCRATCH,
    MASKED_OBJECTIVES,
    PAPER,
    PAPER_OBJECTIVE,
    SHORT_SCRATCH,
    STUDY,
    SUPERVISED,
)
from patchwords.studies.results import judge_claim
from patchwords.studies.study import ScaleName, StudyContext, ValuesByLabel
from patchwords.training.recipes import find_recipe


def costs(scale: ScaleName) -> dict[str, TrialCost]:
    bench = StudyContext(Path("nowhere"), STUDY.scales[scale], "data", "transfer")
    every = [*bench.scale.list_pretrainings(1), *bench.scale.list_trials(1)]
    return {
        ("before " if cell.shared else "") + cell.name: estimate_trial_cost(cell, bench)
        for cell in every
    }


def test_the_long_training_from_scratch_has_seen_as_many_images_as_both() -> None:
    found = costs("mini")
    for name in (SUPERVISED, *MASKED_OBJECTIVES):
        assert found[f"before {name}"].images + found[name].images == found[LONG_SCRATCH].images
        assert found[name].images == found[SHORT_SCRATCH].images
        assert found[name].parameters == found[SHORT_SCRATCH].parameters  # the same model


def test_the_papers_setting() -> None:
    """1 million steps for masked patches (B.1.2), 7 epochs of JFT for labels (Table 3)."""
    found = costs("full")
    assert found[f"before {PAPER_OBJECTIVE}"].steps == 1_000_000
    assert found[f"before {SUPERVISED}"].images == pytest.approx(7 * 303e6, rel=1e-5)
    assert found[LONG_SCRATCH].images == pytest.approx(300 * 1_281_167, abs=4096)
    tuning = find_recipe("paper-finetune-imagenet")
    assert found[PAPER_OBJECTIVE].images == tuning.images_seen
    assert (
        round(found[LONG_SCRATCH].images / found[PAPER_OBJECTIVE].images) == 38
    )  # the note says so


def test_three_targets_at_two_shares() -> None:
    assert [(own["mask_ratio"], own["target"]) for own in MASKED_OBJECTIVES.values()] == [
        (ratio, target)
        for ratio in (0.5, 0.15)
        for target in ("mean-colour", "small-patch", "pixels")
    ]
    for scale in STUDY.scales.values():
        for name, own in MASKED_OBJECTIVES.items():
            assert own.items() <= scale.encoders[name].items()


def test_the_papers_numbers_are_as_printed() -> None:
    assert {PAPER[LONG_SCRATCH], PAPER[PAPER_OBJECTIVE], PAPER[SUPERVISED]} == {
        0.7791,
        0.799,
        0.8397,
    }
    for claim in STUDY.claims:
        if not claim.paper.startswith("+"):
            continue
        [more], [less] = claim.more, claim.less
        points = 100 * (PAPER[more] - PAPER[less])
        assert claim.paper.startswith(f"{points:+.1f} points: {100 * PAPER[more]:.4g} ")


def table(values: dict[str, float]) -> ValuesByLabel:
    """Two seeds of these and of 0.5 for all others, a little apart."""
    names = (SHORT_SCRATCH, LONG_SCRATCH, SUPERVISED, *MASKED_OBJECTIVES)
    return {name: {seed: values.get(name, 0.5) + seed / 1000 for seed in (0, 1)} for name in names}


@pytest.mark.parametrize(
    ("number", "better"),
    [
        (0, (PAPER_OBJECTIVE,)),
        (1, (PAPER_OBJECTIVE,)),
        (2, (SUPERVISED,)),
        (3, ("50 % masked, mean colour", "50 % masked, 4x4 colours", "50 % masked, pixels")),
        (
            4,
            (
                *("50 % masked, mean colour", "50 % masked, 4x4 colours"),
                *("15 % masked, mean colour", "15 % masked, 4x4 colours"),
            ),
        ),
        (5, ("50 % masked, mean colour", "50 % masked, 4x4 colours", "50 % masked, pixels")),
    ],
)
def test_each_claim_is_about_what_it_says(number: int, better: tuple[str, ...]) -> None:
    """All of the better side a point up: the difference is a point, and agrees."""
    found = judge_claim(STUDY.claims[number], table(dict.fromkeys(better, 0.51)))
    assert found.whole.values == pytest.approx((0.01, 0.01))
    assert found.name == "agrees"


def drawn(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def draw_dots(names: Any, series: Any, *_: object) -> dict[str, bytes]:
        seen.update(names=names, here=series[0], paper=series[1])
        return {}

    monkeypatch.setattr("patchwords.report.figures.plots.draw_dot_plot", draw_dots)
    masked_patches.draw_study_figures(results)
    return seen


def test_the_figure_is_of_paired_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        SHORT_SCRATCH: [0.3, 0.5],
        LONG_SCRATCH: [0.4, 0.7],
        PAPER_OBJECTIVE: [0.5, None],
        SUPERVISED: [None, None],
    }
    labels = [{"label": name, "values": found} for name, found in values.items()]
    seen = drawn({"labels": labels, "seeds": 2}, monkeypatch)
    assert seen["names"] == [
        SHORT_SCRATCH,
        LONG_SCRATCH,
        PAPER_OBJECTIVE,
    ]  # what diverged in every seed is not there
    assert seen["here"].values == pytest.approx([-15, 0, 10])
    assert seen["paper"].values[1:] == pytest.approx([0, 1.99])
    assert seen["paper"].values[0] != seen["paper"].values[0]  # not in the paper


def test_no_label_of_what_is_fine_tuned_on_was_seen_before() -> None:
    mini = STUDY.scales["mini"]
    tuned = set(mini.settings["classes"])
    for encoder in mini.encoders.values():
        assert not tuned & set(encoder["classes"])
        assert len(tuned | set(encoder["classes"])) == 10
    assert mini.settings["train_images"] == 25_000 / 10
