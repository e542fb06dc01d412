"""What verdicts know of a study: its own trainings, shared test images, answers to each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patchwords.studies.evidence import (
    collect_answers,
    collect_evidence,
    has_fixed_test_images,
    is_trained_alone,
    unpack_answers,
)
from patchwords.studies.registry import load_study
from patchwords.studies.study import StudyContext, Trial

STUDY = load_study("mixers")
SCALE = replace(STUDY.scales["mini"], grid={"a": {"mixer": "attention"}, "b": {"mixer": "pool"}})
LABELS = {"a": "a", "b": "b"}
RIGHT = {("a", 0): "110", ("a", 1): "111", ("b", 0): "000", ("b", 1): "101"}


def write_predictions(context: StudyContext, trial: str, seed: int, right: str) -> None:
    folder = context.run_folder(Trial(trial, seed, {}))
    folder.mkdir(parents=True)
    rows = [
        f"{place}.jpg,cat,{'cat' if bit == '1' else 'dog'},0.9" for place, bit in enumerate(right)
    ]
    order = rows if seed == 0 else rows[::-1]  # files need not agree in their order
    header = "path,label,prediction,probability"
    (folder / "predictions.csv").write_text("\n".join([header, *order, ""]), encoding="utf-8")


@pytest.fixture
def context(tmp_path: Path) -> StudyContext:
    context = StudyContext(tmp_path, SCALE, "somewhere")
    for (trial, seed), right in RIGHT.items():
        write_predictions(context, trial, seed, right)
    return context


def test_answers_are_those_of_the_files(context: StudyContext) -> None:
    answers = collect_answers(LABELS, 2, context)
    for label in LABELS:
        known = [[bit == "1" for bit in RIGHT[label, seed]] for seed in (0, 1)]
        assert np.array_equal(unpack_answers(answers[label], 3), known)


def test_without_a_file_or_with_other_images_there_are_no_answers(context: StudyContext) -> None:
    assert collect_answers(LABELS, 3, context) == {}
    file = context.run_folder(Trial("b", 1, {})) / "predictions.csv"
    file.write_text(file.read_text(encoding="utf-8").replace("2.jpg", "3.jpg"), encoding="utf-8")
    assert collect_answers(LABELS, 2, context) == {}


def test_evidence_of_trainings_on_shared_images(context: StudyContext) -> None:
    metrics = {
        key: {"accuracy": right.count("1") / 3, "test images": 3.0} for key, right in RIGHT.items()
    }
    table = {label: {seed: metrics[label, seed]["accuracy"] for seed in (0, 1)} for label in LABELS}
    answers = collect_answers(LABELS, 2, context)
    found = collect_evidence(STUDY, SCALE, LABELS, table, metrics, answers)
    assert found.trained == {"a", "b"}
    assert found.images == {"a": 3, "b": 3}
    assert {label: rows.shape for label, rows in found.answers.items()} == {
        "a": (2, 3),
        "b": (2, 3),
    }
    changed = {**table, "b": {0: 0.5, 1: 0.5}}  # computed of something else
    assert collect_evidence(STUDY, SCALE, LABELS, changed, metrics, answers).trained == {"a"}


def test_which_studies_share_test_images_and_trainings() -> None:
    flowers, resolution = (load_study(name).scales["mini"] for name in ("flowers", "resolution"))
    assert has_fixed_test_images(SCALE)
    assert not has_fixed_test_images(flowers)  # every seed holds out other photos
    assert is_trained_alone(SCALE, "a")
    assert not any(is_trained_alone(resolution, trial) for trial in resolution.grid)
