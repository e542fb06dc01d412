"""Contents of a run folder; missing and damaged files are listed, not fatal."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.errors import DataError
from patchwords.training.logs.run_folder import RunFolder

if TYPE_CHECKING:
    from patchwords.data.dataset import DatasetSplits, ImageDataset

RUN_FILES = {  # file -> the part of the report that needs it
    "config.yaml": "the settings",
    "environment.json": "the command and versions",
    "data.json": "the summary of the data",
    "metrics.jsonl": "the training curves and time",
    "evaluation.json": "the held-out results",
    "predictions.csv": "the pictures of mistakes",
}
# Instead of the last two, where a run learned from hidden patches.
MASKED_RUN_FILES = {"masked.json": "the held-out results", "mae.json": "the held-out results"}
MASK_RUN_FILES = {"segmentation.json": "the held-out results"}  # instead of the last two
INSIGHT_FILES = {  # optional
    "insight.json": "what the model learned",
    "insight.npz": "the pictures of what it learned",
}
REQUIRED_KEYS = {
    "evaluation.json": (
        *("images", "accuracy", "loss", "per_class", "macro", "weighted", "confusion"),
        *("balanced_accuracy", "calibration", "baseline"),
    ),
    "data.json": ("classes", "splits"),
    "masked.json": (
        *("images", "accuracy", "loss", "baseline", "target", "patches", "corrupted", "pictures"),
    ),
    "mae.json": (
        *("images", "explained", "loss", "baseline", "patches", "hidden", "decoder", "pictures"),
    ),
    "segmentation.json": (
        *("images", "miou", "pixel_accuracy", "baseline", "per_class", "confusion", "classes"),
        "palette",
    ),
}


@dataclass(frozen=True)
class PredictionRow:
    """A row of predictions.csv."""

    path: str
    label: str
    prediction: str
    probability: float
    correct: bool | None  # None: the image has no label
    true_probability: float | None  # of the true class; None if the file has no column for it


@dataclass(frozen=True)
class RunData:
    """What training and evaluation wrote into a run folder."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)
    predictions: list[PredictionRow] = field(default_factory=list)
    masked: dict[str, Any] = field(default_factory=dict)  # results of a run without classes
    masks: dict[str, Any] = field(default_factory=dict)  # results of a segmentation run
    insight: dict[str, Any] = field(default_factory=dict)  # written by evaluation.model_insight
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # of the insight
    missing: list[str] = field(default_factory=list)  # one sentence per missing or damaged file

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl of one kind, ordered by step.

        A run that resumed after a crash logs some steps twice; the last row of a step counts.
        """
        latest = {
            (row["step"], row.get("split")): row for row in self.metrics if row["kind"] == kind
        }
        return sorted(latest.values(), key=lambda row: row["step"])

    @property
    def results(self) -> dict[str, Any]:
        """Return the held-out results of whatever the run has learned."""
        return self.evaluation or self.masked or self.masks


def read_run_data(folder: Path) -> RunData:
    """Read a run folder; raise DataError only if there is nothing to report on."""
    if not folder.is_dir():
        raise DataError(f"no run folder {str(folder)!r}; give the --output of a training run")
    if not any((folder / name).is_file() for name in RUN_FILES):
        raise DataError(
            f"{str(folder)!r} is not a run folder: it has none of {', '.join(RUN_FILES)}"
        )
    missing: list[str] = []
    contents = RUN_FILES | MASKED_RUN_FILES | MASK_RUN_FILES | INSIGHT_FILES

    def read(name: str, parse: Callable[[Path], Any], nothing: Any) -> Any:
        path = folder / name
        if not path.is_file():
            missing.append(f"{name} is missing, so {contents[name]} cannot be shown.")
            return nothing
        try:
            return parse(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            missing.append(
                f"{name} cannot be read ({reason}), so {contents[name]} cannot be shown."
            )
            return nothing

    # A masked pre-training run has no classes, so no results or predictions of them.
    has_masks = (folder / "segmentation.json").is_file()
    masks = read("segmentation.json", read_json_object, {}) if has_masks else {}
    results = next((name for name in MASKED_RUN_FILES if (folder / name).is_file()), None)
    without_classes = has_masks or results is not None
    masked = read(results, read_json_object, {}) if results is not None else {}
    evaluation = {} if without_classes else read("evaluation.json", read_json_object, {})
    has_insight = (folder / "insight.json").is_file()
    has_training = not (evaluation or masks).get("of")  # else another folder has it
    return RunData(
        folder=folder,
        config=read("config.yaml", read_yaml_mapping, {}) if has_training else {},
        environment=read("environment.json", read_json_object, {}),
        data=read("data.json", read_json_object, {}),
        metrics=(
            read("metrics.jsonl", lambda path: read_metrics_rows(path, missing), [])
            if has_training
            else []
        ),
        evaluation=evaluation,
        predictions=[] if without_classes else read("predictions.csv", read_predictions_csv, []),
        masked=masked,
        masks=masks,
        insight=read("insight.json", read_json_object, {}) if has_insight else {},
        arrays=read("insight.npz", read_npz_arrays, {}) if has_insight else {},
        missing=missing,
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object and check the keys that the report needs."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} where an object is due")
    lacking = [key for key in REQUIRED_KEYS.get(path.name, ()) if key not in content]
    if lacking:
        raise ValueError(f"it has no {', '.join(lacking)}")
    return content


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} where a mapping is due")
    return content


def read_metrics_rows(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """Read the rows of metrics.jsonl; skip and report lines cut off by a killed run."""
    rows = []
    torn = []
    for number, line in enumerate(
        path.read_text(encoding="utf-8", errors="replace").splitlines(), 1
    ):
        try:
            row = json.loads(line)
            rows.append({**row, "kind": row["kind"], "step": int(row["step"])})
        except (ValueError, KeyError, TypeError):
            torn.append(number)
    if torn:
        missing.append(
            f"{len(torn)} of {len(rows) + len(torn)} lines of metrics.jsonl cannot be read "
            f"(the first is line {torn[0]}); they are left out of the curves."
        )
    return rows


def read_npz_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(str(error)) from error


def read_predictions_csv(path: Path) -> list[PredictionRow]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return [
            PredictionRow(
                path=row["path"],
                label=row["label"],
                prediction=row["prediction"],
                probability=float(row["probability"]),
                correct={"true": True, "false": False}.get(row["correct"]),
                true_probability=(
                    float(row[f"p:{row['label']}"]) if f"p:{row['label']}" in row else None
                ),
            )
            for row in csv.DictReader(file)
        ]


# The images that a run was trained on.


REMOTE_KINDS = {"stream", "hub"}  # kinds of data that are fetched only if the user names them


@dataclass(frozen=True)
class DataRequest:
    """The data of a command: given by a flag, or those that a run was trained on."""

    source: str  # the model, as the user named it
    flag: str  # the flag for data, for messages
    data: str | None = None  # default: the data that the run records
    image_column: str | None = None
    label_column: str | None = None

    def open(self) -> DatasetSplits | None:
        """Open the data; None if none are given or recorded.

        Raises DataError for data that cannot be read, or recorded data that are remote.
        """
        from patchwords.data.open import open_data

        data, settings = self.data, {}
        if data is None:
            if not RunFolder(Path(self.source)).config.is_file():
                return None
            contents = read_run_data(Path(self.source))
            recorded = contents.environment.get("data") or {}
            data, settings = recorded.get("source"), contents.config
            if not data:
                return None
            if recorded.get("kind") in REMOTE_KINDS:
                raise DataError(f"{data} is remote: give {self.flag} {data} to fetch it")
        return open_data(
            data,
            image_column=self.image_column or settings.get("image_column"),
            label_column=self.label_column or settings.get("label_column"),
            classes=settings.get("classes"),
            need_labels=False,
        )

    def select_training(self, data: DatasetSplits) -> tuple[ImageDataset, str]:
        """Select the training images, and say which they are; raises DataError for none."""
        from patchwords.evaluation.held_out import read_run_splits
        from patchwords.evaluation.probes.knn import select_training_images

        return select_training_images(data, read_run_splits(Path(self.source), data))
