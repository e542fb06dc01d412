"""The folder of a run: file names, checks before writing, and its JSON records."""

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
    """Paths of the files in a run folder."""

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
    def fingerprints(self) -> Path:
        """What recognises the images of splits.csv under other names."""
        return self.path / "fingerprints.npy"

    @property
    def budget(self) -> Path:
        """The time of a run with --budget, and where its schedule was cut."""
        return self.path / "budget.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def frozen(self) -> Path:
        """Cached outputs of frozen layers, deleted at the end of the run."""
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
    """Create the run folder; raises ConfigError if something else is in the way."""
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
    """Refuse a folder that a run may not resume, replace or fill."""
    if resume:
        if not run.config.is_file():
            raise ConfigError(f"--resume: {run.path} holds no run to go on with (no config.yaml)")
        return
    # A run that was killed before it wrote config.yaml has left no more than these.
    unfinished = {run.data, run.environment, run.splits, run.fingerprints, run.budget}
    try:
        if not run.path.exists() or (run.path.is_dir() and set(run.path.iterdir()) <= unfinished):
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
    """Read the settings as the user gave them at the start; {} if they are lost."""
    try:
        return dict(json.loads(run.environment.read_text(encoding="utf-8"))["asked"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # then only the resolved settings can be repeated


def read_launch_command(run: RunFolder) -> str | None:
    """Read the id of the torchrun launch that started the run, if any."""
    try:
        return json.loads(run.environment.read_text(encoding="utf-8")).get("launch")
    except (OSError, ValueError, AttributeError):
        return None


def check_output_overlap(output: Path, data: Path, weights: Path | None) -> None:
    """Refuse a run folder that would destroy or disturb the data or the weights."""
    folder = output.resolve()
    if data.exists() and folder in data.resolve().parents:
        raise ConfigError(f"--output {output} holds the data, {data}; choose a folder elsewhere")
    if data.is_dir() and data.resolve() in [folder, *folder.parents]:
        raise ConfigError(
            f"--output {output} lies inside the data, {data}: its pictures would be taken for a "
            "class of it; choose a folder elsewhere"
        )
    if weights is not None and folder in [weights.resolve(), *weights.resolve().parents]:
        raise ConfigError(
            f"--output {output} is where --weights {weights} lie, which the run needs again on "
            "--resume; choose another --output"
        )


def find_free_path(preferred: Path) -> Path:
    """Find the first of PATH, PATH-2, PATH-3, ... that does not exist."""
    path, number = preferred, 1
    while path.exists():
        number += 1
        path = preferred.with_name(f"{preferred.name}-{number}")
    return path


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table as indented JSON in UTF-8."""
    write_atomically(path, json.dumps(table, indent=2, ensure_ascii=False) + "\n")


def describe_data(data: DatasetSplits, skipped: Mapping[str, str]) -> dict[str, Any]:
    """Build data.json: classes and counts of every split, notes, skipped images."""
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
    """Build environment.json: command, versions, device, system."""
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
