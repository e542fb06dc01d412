"""What a model says of labelled images, in a form that two models can be compared in."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from patchwords.errors import DataError, did_you_mean

MAX_LISTED_CLASSES = 4  # classes that an error names


@dataclass(frozen=True)
class LabelledPredictions:
    """Sizes: n images."""

    name: str  # of the model, for a person
    classes: tuple[str, ...]
    keys: Sequence[str]  # [n] what names the images
    labels: np.ndarray  # [n] int64, position in classes
    predicted: np.ndarray  # [n] int64, position in classes
    probability: np.ndarray  # [n] float64, that the model gives its answer
    trained_on: bool | None = None  # was the model trained on some of them? None: nobody knows

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def right(self) -> np.ndarray:
        """bool [n]"""
        return self.predicted == self.labels

    def select(self, chosen: Sequence[int]) -> LabelledPredictions:
        """Those at these positions, in this order."""
        places = np.asarray(chosen, dtype=np.int64)
        return replace(
            self,
            keys=[self.keys[i] for i in places.tolist()],
            labels=self.labels[places],
            predicted=self.predicted[places],
            probability=self.probability[places],
        )


def read_labelled_predictions(folder: Path) -> LabelledPredictions:
    """Those that a run or an evaluation left: predictions.csv, and the classes of evaluation.json.

    Raises DataError where one of the files is missing, damaged or does not fit the other.
    """
    for name in ("predictions.csv", "evaluation.json"):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder} has no {name}, so its answers are not known: name the DATA to ask its "
                "model about, or the --output of patchwords evaluate"
            )
    try:
        evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
        path = folder / "predictions.csv"
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = [
                (row["path"], row["label"], row["prediction"], float(row["probability"]))
                for row in csv.DictReader(file)
            ]
        return parse_labelled_predictions(str(folder), evaluation, rows)
    except KeyError as error:
        raise DataError(f"{folder}: its results have no {error}; evaluate anew") from error
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{folder}: its results are damaged: {error}") from error


def parse_labelled_predictions(
    name: str, evaluation: Mapping[str, Any], rows: Sequence[tuple[str, str, str, float]]
) -> LabelledPredictions:
    """From the rows of predictions.csv, as (path, label, prediction, probability).

    Raises DataError where a row has a class that evaluation.json has not.
    """
    classes = tuple(row["class"] for row in evaluation["per_class"])
    place = {name: i for i, name in enumerate(classes)}
    try:
        return LabelledPredictions(
            name=name,
            classes=classes,
            keys=[row[0] for row in rows],
            labels=np.array([place[row[1]] for row in rows], dtype=np.int64),
            predicted=np.array([place[row[2]] for row in rows], dtype=np.int64),
            probability=np.array([row[3] for row in rows], dtype=np.float64),
            trained_on=evaluation.get("trained_on"),
        )
    except KeyError as error:
        raise DataError(
            f"{name}: predictions.csv and evaluation.json do not fit: there is no {error}; "
            "evaluate anew"
        ) from error


def match_predictions(
    a: LabelledPredictions, b: LabelledPredictions
) -> tuple[LabelledPredictions, LabelledPredictions]:
    """The images that both were asked about, in the order of `a` and with its classes.

    Raises DataError where the sets of classes differ, where an image has two labels, or where no
    image is common.
    """
    require_same_classes(a.name, a.classes, b.name, b.classes)
    place = {key: i for i, key in enumerate(b.keys)}
    common = [(i, place[key]) for i, key in enumerate(a.keys) if key in place]
    if not common:
        raise DataError(
            f"{a.name} and {b.name} have no image in common: {len(a):,} such as "
            f"{next(iter(a.keys), 'none')!r}, and {len(b):,} such as {next(iter(b.keys), 'none')!r}"
        )
    of_a, of_b = zip(*common, strict=True)
    first, second = a.select(of_a), reorder_classes(b.select(of_b), a.classes)
    other = np.flatnonzero(first.labels != second.labels)
    if len(other):
        i = int(other[0])
        raise DataError(
            f"{first.keys[i]!r} is {a.classes[first.labels[i]]!r} for {a.name} and "
            f"{a.classes[second.labels[i]]!r} for {b.name} ({len(other):,} such images): they were "
            "not asked about the same data"
        )
    return first, second


def reorder_classes(answers: LabelledPredictions, classes: Sequence[str]) -> LabelledPredictions:
    """The same with the classes in another order."""
    place = {name: i for i, name in enumerate(classes)}
    table = np.array([place[name] for name in answers.classes], dtype=np.int64)
    return replace(
        answers,
        classes=tuple(classes),
        labels=table[answers.labels],
        predicted=table[answers.predicted],
    )


def require_same_classes(a: str, of_a: Sequence[str], b: str, of_b: Sequence[str]) -> None:
    """Raise DataError unless both know the same classes, whatever their order."""
    alone = {a: sorted(set(of_a) - set(of_b)), b: sorted(set(of_b) - set(of_a))}
    if not any(alone.values()):
        return
    lacking = "; ".join(
        f"only {name} knows {', '.join(map(repr, names[:MAX_LISTED_CLASSES]))}"
        + (
            f" and {len(names) - MAX_LISTED_CLASSES:,} more"
            if len(names) > MAX_LISTED_CLASSES
            else ""
        )
        for name, names in alone.items()
        if names
    )
    single = [names[0] for names in alone.values() if len(names) == 1]
    hint = did_you_mean(single[0], single[1:]) if len(single) == 2 else ""
    raise DataError(f"the models answer with other classes: {lacking}{hint}")
