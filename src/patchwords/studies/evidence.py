"""Which labels of a study are trainings of their own, and which test images they share."""

from __future__ import annotations

import csv
from collections.abc import Mapping

import numpy as np

from patchwords.studies.inference import Evidence
from patchwords.studies.study import (
    ACCURACY_UNIT,
    ENCODER,
    VERB,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
    ValuesByLabel,
)
from patchwords.training.logs.run_folder import RunFolder

AnswersByLabel = Mapping[str, list[str]]  # label -> a bit per image, in hexadecimal, by seed


def collect_evidence(
    study: Study,
    scale: Scale,
    labels: Mapping[str, str],
    table: ValuesByLabel,
    metrics: Mapping[tuple[str, int], TrialMetrics],
    answers: AnswersByLabel,
) -> Evidence:
    """Collect values, their kinds and their test images for the verdicts."""
    accuracies = [
        label
        for label, trial in labels.items()
        if label in table
        and study.unit(label) == ACCURACY_UNIT
        and all(value == metrics[trial, s].get("accuracy") for s, value in table[label].items())
    ]
    seeds = max(map(len, table.values()), default=0)
    images: dict[str, int] = {}
    if seeds == 1 or has_fixed_test_images(scale):
        for label in accuracies:
            count = metrics[labels[label], 0].get("test images")
            if count:
                images[label] = int(count)
    known = {label: rows for label, rows in answers.items() if label in images}
    return Evidence(
        table,
        frozenset(label for label in accuracies if is_trained_alone(scale, labels[label])),
        images,
        {label: unpack_answers(rows, images[label]) for label, rows in known.items()},
    )


def is_trained_alone(scale: Scale, trial: str) -> bool:
    """Whether the trainings of a trial share nothing with those of other trials."""
    settings = {VERB: scale.verb, **scale.settings, **scale.grid[trial]}
    return settings[VERB] != "none" and ENCODER not in settings


def has_fixed_test_images(scale: Scale) -> bool:
    """Whether all seeds are evaluated on the same images."""
    return (
        scale.shots is not None or not scale.tuned or scale.settings.get("split_seed") is not None
    )


def collect_answers(
    labels: Mapping[str, str], seeds: int, context: StudyContext
) -> dict[str, list[str]]:
    """Collect from predictions.csv which images each trial has right; none where a file lacks."""
    answers: dict[str, list[str]] = {}
    keys: list[str] | None = None
    for label, name in labels.items():
        rows = []
        for seed in range(seeds):
            folder = RunFolder(context.run_folder(Trial(name, seed, {})))
            right = read_right_answers(folder)
            if right is None or (keys is not None and sorted(right) != keys):
                return {}
            keys = keys or sorted(right)
            rows.append(pack_answers([right[key] for key in keys]))
        answers[label] = rows
    return answers


def read_right_answers(folder: RunFolder) -> dict[str, bool] | None:
    """Read which images a run has right, by their path; None without predictions."""
    if not folder.predictions.is_file():
        return None
    with folder.predictions.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    right = {row["path"]: row["label"] == row["prediction"] for row in rows}
    return right if len(right) == len(rows) else None  # some images share a path


def pack_answers(right: list[bool]) -> str:
    """Pack booleans, eight to a byte, as hexadecimal digits.

    >>> unpack_answers([pack_answers([True, False, True])], 3)
    array([[ True, False,  True]])
    """
    return np.packbits(np.asarray(right, bool)).tobytes().hex()


def unpack_answers(rows: list[str], count: int) -> np.ndarray:
    """Unpack the answers of each seed: bool [seeds, images]."""
    packed = np.asarray([list(bytes.fromhex(row)) for row in rows], np.uint8)
    return np.unpackbits(packed, axis=1, count=count).astype(bool)
