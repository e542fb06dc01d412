"""How a cell of `flowers` is measured: its curves, and the photos held out beside all photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from patchwords.data.examples import TEST, concatenate_datasets
from patchwords.device import Device
from patchwords.evaluate.held_out import predict_examples
from patchwords.evaluate.series import evaluate_and_report, read_evaluation
from patchwords.studies.bench import StudyContext
from patchwords.studies.paper.flowers_notes import (
    ALL_PHOTOS,
    COLUMNS,
    HELD_OUT,
    NOTES_ALL_WEIGHTS,
    NOTES_DANDELION_ANSWERS,
    NOTES_HEAD_ONLY,
    PHOTOS_BY_CLASS,
    RESNET,
)
from patchwords.studies.study import Trial, TrialMetrics
from patchwords.studies.training import train_and_measure, train_trial
from patchwords.train.journal import read_metrics
from patchwords.train.run_folder import RunFolder


def measure_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """Train; the curves beside what every training tells."""
    numbers = dict(train_and_measure(cell, bench))
    if numbers.get("diverged"):
        return numbers
    folder, steps = RunFolder(bench.run(cell)), numbers["steps"]
    return numbers | collect_training_curves(read_metrics(folder.metrics), steps or 1)


def collect_training_curves(rows: Sequence[Mapping[str, Any]], steps: float) -> dict[str, float]:
    """Loss and accuracy over the training, in the order of the steps."""
    names = {"train": "training", "evaluation": "validation"}
    return {
        f"{names[row['kind']]} {what} at {row['step'] / steps:.4g}": row[what]
        for row in rows
        if row["kind"] in names
        for what in ("loss", "accuracy")
        if (row["kind"], what) != ("evaluation", "accuracy")  # which every training tells
    }


def evaluate_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """By the photos held out, once; and by all of them, as the notes' tables are."""
    job = train_trial(cell, bench)  # which is done, and loaded
    evaluate_and_report(job, None)
    evaluation = read_evaluation(job.folder)
    known = concatenate_datasets([part for name, part in job.data.splits.items() if name != TEST])
    device = Device(job.device.torch_device, bf16=False)
    said = predict_examples(job.start.model, known, job.start.preprocess, device, job.workers)
    seen = np.zeros((len(job.data.classes),) * 2, np.int64)
    np.add.at(seen, (said.labels, said.probabilities.argmax(1)), 1)
    held_out = np.array(evaluation["confusion"])
    return {
        **compute_confusion_scores(held_out, held_out + seen, job.data.classes),
        "loss": evaluation["loss"],
        "test images": evaluation["images"],
        "photos": float(held_out.sum() + seen.sum()),
    }


def compute_confusion_scores(
    held_out: np.ndarray, everything: np.ndarray, classes: Sequence[str]
) -> dict[str, float | None]:
    """Two confusion matrices, int [classes, classes], a row for each true class -> numbers.

    A class that is never answered has precision 0.
    """
    found: dict[str, float | None] = {}
    for column, counts in zip(COLUMNS, (held_out, everything), strict=True):
        found["accuracy" if column == HELD_OUT else column] = float(counts.trace() / counts.sum())
        right, answers, there = counts.diagonal(), counts.sum(0), counts.sum(1)  # [classes]
        by_class = {
            "precision": right / np.maximum(answers, 1),
            "recall": right / np.maximum(there, 1),
            "f1": 2 * right / np.maximum(answers + there, 1),
        }
        for i, name in enumerate(classes):
            for what, values in by_class.items():
                found[f"{column} {what}, {name}"] = float(values[i])
            found[f"{column} share of answers, {name}"] = float(answers[i] / counts.sum())
    for name, row in zip(classes, held_out, strict=True):
        for answer, count in zip(classes, row, strict=True):
            found[f"{HELD_OUT}, {name} taken for {answer}"] = float(count)
    return found


DANDELION_EXCESS = RESNET + ", {}: 'dandelion' answered, above 49.1 %"
LATE_GAIN = f"{RESNET}, {NOTES_ALL_WEIGHTS}: training accuracy gained after a fortieth of the steps"


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Both accuracies of every cell, and of the ResNets what the notes say of theirs."""
    table: dict[str, float | None] = {}
    for label, name in labels.items():
        table[f"{label}, {HELD_OUT}"] = found[name].get("accuracy")
        table[f"{label}, {ALL_PHOTOS}"] = found[name].get(ALL_PHOTOS)
    for recipe in (NOTES_HEAD_ONLY, NOTES_ALL_WEIGHTS):
        share = found[labels[f"{RESNET}, {recipe}"]].get(
            f"{ALL_PHOTOS} share of answers, dandelion"
        )
        above = (
            None
            if share is None
            else share - NOTES_DANDELION_ANSWERS / sum(PHOTOS_BY_CLASS.values())
        )
        table[DANDELION_EXCESS.format(recipe)] = above
    table[LATE_GAIN] = compute_late_gain(found[labels[f"{RESNET}, {NOTES_ALL_WEIGHTS}"]])
    return table


def compute_late_gain(numbers: TrialMetrics) -> float | None:
    """Training accuracy in the last tenth of the steps, less that of their second fortieth."""
    curve = [value for name, value in numbers.items() if name.startswith("training accuracy at ")]
    if len(curve) < 6:
        return None
    known = [value for value in (curve[1], *curve[-4:]) if value is not None]
    return sum(known[1:]) / 4 - known[0] if len(known) == 5 else None
