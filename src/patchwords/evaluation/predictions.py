"""Predictions of a classifier over a split, in memory and in predictions.csv.

Sizes: B batch, C channels, H W image, n readable images. Nothing here draws a random number, and
every module gets its training mode back, so evaluation does not disturb training.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from patchwords.data.dataset import DatasetSplits, ImageDataset
from patchwords.data.loader import choose_num_workers
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device, DeviceName, InferencePrecision, choose_device
from patchwords.errors import ConfigError, DataError, did_you_mean
from patchwords.files import write_atomically
from patchwords.models.build import Model
from patchwords.models.inference.packed import pack_for_inference
from patchwords.weights.pretrained import Pretrained, find_run_folder
from patchwords.weights.store import from_pretrained

if TYPE_CHECKING:
    from patchwords.data.loader import ImageBatch
    from patchwords.data.preprocess import Preprocess


PREDICTION_PRECISIONS = ("fp32", "bf16", "int8")
MAX_PROBABILITY_COLUMNS = 100  # with more classes, predictions.csv leaves out the column per class


@dataclass(frozen=True)
class Predictions:
    """Probabilities of the readable images, and the unreadable images."""

    indices: np.ndarray  # [n] int64, position in the examples
    labels: np.ndarray  # [n] int64, -1 = no label
    probabilities: np.ndarray  # [n, classes] float32
    bad: list[tuple[int, str]]  # (position in the examples, reason)


def predict_probabilities(
    model: torch.nn.Module,
    batches: Iterable[ImageBatch],
    preprocess: Preprocess,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
) -> Predictions:
    """Predict probabilities of every readable image, in the order of the batches.

    With int8 the model must be prepared (`Pretrained.for_inference`).
    """
    if precision not in PREDICTION_PRECISIONS:
        raise ConfigError(
            f"unknown precision {precision!r}{did_you_mean(precision, PREDICTION_PRECISIONS)}"
        )
    device = torch.device(device)
    chosen = choose_device(device.type, precision)  # type: ignore[arg-type]
    fast = model if chosen.int8 else pack_for_inference(cast(Model, model), chosen.bf16)

    def encode(images: Tensor) -> Tensor:
        return fast(preprocess.normalise(images)).float().softmax(-1)  # softmax in float32

    with eval_mode(model), chosen.autocast():
        return Predictions(*collect_outputs(encode, batches, device))


def collect_outputs(
    encode: Callable[[Tensor], Tensor], batches: Iterable[ImageBatch], device: torch.device
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, str]]]:
    """Apply `encode`, uint8 [B, C, H, W] -> [B, V], to every readable image, batch by batch.

    -> positions in the examples [n], labels [n], values [n, V], and the unreadable images.
    """
    indices, labels, values = [], [], []
    bad: list[tuple[int, str]] = []
    with torch.inference_mode():
        for batch in batches:
            bad += batch.bad
            if not len(batch.indices):  # no readable image
                continue
            values.append(encode(batch.images.to(device, non_blocking=True)).cpu().numpy())
            indices.append(batch.indices.numpy())
            labels.append(batch.targets.numpy())
    nothing = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([nothing, *indices]),
        np.concatenate([nothing, *labels]),
        np.concatenate(values or [np.empty((0, 0), dtype=np.float32)]),
        bad,
    )


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch to eval() inside the context; each module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def write_predictions(
    path: Path | str, examples: ImageDataset, predictions: Predictions, classes: Sequence[str]
) -> None:
    """Write predictions.csv: path, label, prediction, probability, correct, and p:<class> columns.

    An image without a label has neither label nor correct.
    """
    columns = [f"p:{name}" for name in classes] if len(classes) <= MAX_PROBABILITY_COLUMNS else []
    file = io.StringIO(newline="")
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["path", "label", "prediction", "probability", "correct", *columns])
    for index, label, row in zip(
        predictions.indices.tolist(),
        predictions.labels.tolist(),
        predictions.probabilities,
        strict=True,
    ):
        best = int(row.argmax())
        rows.writerow(
            [
                examples.keys[index],
                classes[label] if label >= 0 else "",
                classes[best],
                f"{row[best]:.6f}",
                ("true" if best == label else "false") if label >= 0 else "",
                *(f"{p:.6f}" for p in (row if columns else ())),
            ]
        )
    # a file name that is not UTF-8 is written as its bytes
    write_atomically(Path(path), file.getvalue().encode("utf-8", "surrogateescape"))


# Predictions of labelled images that can be compared between models.


MAX_LISTED_CLASSES = 4  # classes listed in an error


@dataclass(frozen=True)
class LabelledPredictions:
    """Predictions of n labelled images, comparable between models."""

    name: str  # of the model, human-readable
    classes: tuple[str, ...]
    keys: Sequence[str]  # [n] what names the images
    labels: np.ndarray  # [n] int64, position in classes
    predicted: np.ndarray  # [n] int64, position in classes
    probability: np.ndarray  # [n] float64, of the predicted class
    trained_on: bool | None = None  # the model was trained on some of them; None: unknown

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def right(self) -> np.ndarray:
        """bool [n]"""
        return self.predicted == self.labels

    def select(self, chosen: Sequence[int]) -> LabelledPredictions:
        """Select the predictions at these positions, in this order."""
        places = np.asarray(chosen, dtype=np.int64)
        return replace(
            self,
            keys=[self.keys[i] for i in places.tolist()],
            labels=self.labels[places],
            predicted=self.predicted[places],
            probability=self.probability[places],
        )


def read_labelled_predictions(folder: Path) -> LabelledPredictions:
    """Read predictions.csv, and the classes of evaluation.json.

    Raises DataError if a file is missing, damaged or does not match the other.
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
        raise DataError(f"{folder}: its results have no {error}; evaluate again") from error
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{folder}: its results are damaged: {error}") from error


def parse_labelled_predictions(
    name: str, evaluation: Mapping[str, Any], rows: Sequence[tuple[str, str, str, float]]
) -> LabelledPredictions:
    """Parse rows of predictions.csv: (path, label, prediction, probability).

    Raises DataError for a class that evaluation.json does not have.
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
            "evaluate again"
        ) from error


def match_predictions(
    a: LabelledPredictions, b: LabelledPredictions
) -> tuple[LabelledPredictions, LabelledPredictions]:
    """Match the images of two models, in the order of `a` and with its classes.

    Raises DataError if the sets of classes differ, an image has two labels, or no image is common.
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
    """Reorder the classes."""
    place = {name: i for i, name in enumerate(classes)}
    table = np.array([place[name] for name in answers.classes], dtype=np.int64)
    return replace(
        answers,
        classes=tuple(classes),
        labels=table[answers.labels],
        predicted=table[answers.predicted],
    )


def require_same_classes(a: str, of_a: Sequence[str], b: str, of_b: Sequence[str]) -> None:
    """Raise DataError unless both have the same classes, in any order."""
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


# A trained model to evaluate, and its device.


@dataclass(frozen=True)
class EvaluationOptions:
    """How to read images, and what to compute on."""

    image_column: str | None = None  # column of a CSV or parquet that has the images
    label_column: str | None = None  # column of a CSV or parquet that has the labels
    max_bad: float = 0.01  # share of the images that may be unreadable
    device: DeviceName = "auto"
    precision: InferencePrecision = "fp32"
    workers: int | None = None  # processes that decode images; default: as many as are useful

    def open_data(self, data: str | Path, **settings: Any) -> DatasetSplits:
        """Open the images."""
        columns = {"image_column": self.image_column, "label_column": self.label_column}
        return open_data(str(data), **columns, **settings)  # type: ignore[arg-type]

    def load_model(self, model: str | Path | Pretrained) -> LoadedModel:
        """Load the model on the device."""
        return load_model_on_device(model, choose_device(self.device, self.precision), self.workers)


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device, with the workers that decode its images."""

    name: str  # as the user named it
    source: Pretrained
    device: Device
    workers: int | None = None  # default: as many as are useful
    folder: Path | None = None  # where its run may have left splits.csv

    @property
    def model(self) -> Model:
        return self.source.model

    @property
    def preprocess(self) -> Preprocess:
        return self.source.preprocess

    def workers_for(self, examples: ImageDataset) -> int:
        """Return the number of processes that decode these images."""
        if self.workers is not None:
            return self.workers
        return choose_num_workers(examples, self.device.type == "cuda")


def load_model_on_device(
    model: str | Path | Pretrained, device: Device, workers: int | None = None
) -> LoadedModel:
    """Load a model by name, or take a loaded one, in evaluation mode on the device."""
    if isinstance(model, Pretrained):
        source, folder = model, model.home
        name = str(find_run_folder(folder)) if folder else model.architecture or "the model"
    else:
        source, folder, name = from_pretrained(model), Path(model), str(model)
    source.model.to(device.torch_device).eval()
    return LoadedModel(name, source, device, workers, folder)


def refuse_duplicate_models(names: Sequence[str]) -> None:
    """Raise ConfigError if a model is named twice."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} is named twice: a model need not be compared with itself")
