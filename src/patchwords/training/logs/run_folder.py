"""The folder that a run writes: what is in it, who may write there, and what it says of itself."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwords.data.dataset import DatasetSplits
from patchwords.errors import ConfigError
from patchwords.files import explain_write_error, write_atomically

REPORTED_PACKAGES = (
    *("patchwords", "torch", "numpy", "pillow", "simplejpeg", "safetensors", "scikit-learn"),
)


@dataclass(frozen=True)
class RunFolder:
    """Names of the files in a run folder (DESIGN: "A run folder")."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def data(self) -> Path:
        return self.path / "data.json"

    @property
    def splits(self) -> Path:
        return self.path / "splits.csv"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def frozen(self) -> Path:
        """What layers that do not learn have given; while the run lasts."""
        return self.path / "frozen"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions.csv"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation.json"


def claim_run_folder(path: Path, *, resume: bool, overwrite: bool) -> RunFolder:
    """Make the folder this run's own; raises ConfigError where something else is in the way."""
    run = RunFolder(path)
    check_run_folder_available(run, resume=resume, overwrite=overwrite)
    if resume:
        return run
    try:
        if run.config.is_file():
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".write-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise explain_write_error(error, path) from error
    return run


def check_run_folder_available(run: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise ConfigError where the folder is not one that a run may go on in, replace or fill."""
    if resume:
        if not run.config.is_file():
            raise ConfigError(f"--resume: {run.path} holds no run to go on with (no config.yaml)")
        return
    # A run that was killed before its config.yaml was written has left no more than these.
    unborn = {run.data, run.environment, run.splits}
    try:
        if not run.path.exists() or (run.path.is_dir() and set(run.path.iterdir()) <= unborn):
            return
    except OSError as error:
        raise explain_write_error(error, run.path) from error
    if not overwrite:
        raise ConfigError(
            f"{run.path} exists: go on with it by --resume, replace it by --overwrite, "
            "or choose another --output"
        )
    if not run.config.is_file():
        raise ConfigError(
            f"--overwrite: {run.path} is not a run folder (no config.yaml), so it is left alone; "
            "choose another --output"
        )


def read_requested_settings(run: RunFolder) -> dict[str, Any]:
    """The settings that the run was started with, as they were said; {} where that is lost."""
    try:
        return dict(json.loads(run.environment.read_text(encoding="utf-8"))["asked"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # then only the settings as they were resolved can be said again


def read_launch_command(run: RunFolder) -> str | None:
    """The start of torchrun that the run began in (`distributed.launch`), if any."""
    try:
        return json.loads(run.environment.read_text(encoding="utf-8")).get("launch")
    except (OSError, ValueError, AttributeError):
        return None


def check_output_overlap(output: Path, data: Path, weights: Path | None) -> None:
    """Raise ConfigError where the run folder would destroy or disturb what the run is made from."""
    place = output.resolve()
    if data.exists() and place in data.resolve().parents:
        raise ConfigError(f"--output {output} holds the data, {data}; choose a folder elsewhere")
    if data.is_dir() and data.resolve() in [place, *place.parents]:
        raise ConfigError(
            f"--output {output} lies inside the data, {data}: its pictures would be taken for a "
            "class of it; choose a folder elsewhere"
        )
    if weights is not None and place in [weights.resolve(), *weights.resolve().parents]:
        raise ConfigError(
            f"--output {output} is where --weights {weights} lie, which the run needs again on "
            "--resume; choose another --output"
        )


def find_free_path(wanted: Path) -> Path:
    """`wanted`, or `wanted-2`, `wanted-3`, ...: the first that does not exist."""
    path, number = wanted, 1
    while path.exists():
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """JSON for people and programs alike: indented, names in UTF-8."""
    write_atomically(path, json.dumps(table, indent=2, ensure_ascii=False) + "\n")


def describe_data(data: DatasetSplits, skipped: Mapping[str, str]) -> dict[str, Any]:
    """data.json: classes and counts of every split, notes, and the images that were left out."""
    return {
        "source": data.source,
        "kind": data.kind,
        "classes": list(data.classes),
        "splits": {
            name: {"images": len(examples), "per_class": examples.count_per_class().tolist()}
            for name, examples in data.splits.items()
        },
        "notes": list(data.notes),
        "skipped": [
            {"path": path, "reason": reason, "split": "train"} for path, reason in skipped.items()
        ],
    }


def describe_environment(device: Mapping[str, object], data: Mapping[str, str]) -> dict[str, Any]:
    """environment.json: what ran, on what, with which versions."""
    versions = {"python": platform.python_version()}
    for package in REPORTED_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # run from a source tree
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": versions,
        "device": dict(device),
        "system": platform.platform(),
        "data": dict(data),
    }
