"""What lies in the folder of a study, and whether it is this study's.

DIR/study.json                  which study, at which scale, on which data, how long
DIR/cells/NAME-SEED/result.json what the cell came to; there when it is done
DIR/cells/NAME-SEED/judged.json its test accuracy, where it was chosen
DIR/cells/NAME-SEED/run/        the run folder of a training; log.txt: what it said
DIR/shared/                     what several cells use
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patchwords.errors import ConfigError
from patchwords.files import write_atomically
from patchwords.studies.study import ScaleName, Study
from patchwords.train.run_folder import write_json

MANIFEST_FILE = "study.json"


@dataclass(frozen=True)
class StudyManifest:
    """What was begun in a folder."""

    study: str
    scale: ScaleName
    version: int
    digest: str  # of the grid and its settings
    data: str | None  # fingerprint of the images
    transfer: str | None  # likewise
    precision: str
    budget: float | None  # minutes
    seeds: int
    share: float = 1.0  # of the steps of every training
    notes: tuple[str, ...] = ()  # on what was trimmed, for a person

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST_FILE, asdict(self))


def compute_study_digest(study: Study, scale: ScaleName) -> str:
    """Of all that decides what a cell computes."""
    one = study.scales[scale]
    about = {
        "version": study.version,
        "settings": dict(one.settings),
        "grid": {name: dict(own) for name, own in one.grid.items()},
        "encoders": {name: dict(own) for name, own in one.encoders.items()},
        "about": [one.verb, one.tuned, one.shots],
    }
    text = json.dumps(about, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_study_manifest(folder: Path) -> StudyManifest | None:
    """None where the folder is new. Raises ConfigError where it holds something else."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ConfigError(f"--output {folder} is a file; choose a folder")
    if not (folder / MANIFEST_FILE).is_file():
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise ConfigError(
                f"--output {folder} exists and holds no study (no {MANIFEST_FILE}); choose another"
            )
        return None
    try:
        found: dict[str, Any] = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return StudyManifest(**{**found, "notes": tuple(found["notes"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{folder / MANIFEST_FILE} is damaged ({error}); choose another --output"
        ) from error


def require_same_study(folder: Path, begun: StudyManifest, now: StudyManifest) -> None:
    """Raise ConfigError where the folder holds what this command would not have made."""
    elsewhere = "choose another --output"
    if (begun.study, begun.scale) != (now.study, now.scale):
        raise ConfigError(
            f"{folder} holds the study {begun.study} at scale {begun.scale}, not {now.study} at "
            f"scale {now.scale}; {elsewhere}"
        )
    if (begun.version, begun.digest) != (now.version, now.digest):
        raise ConfigError(
            f"{folder} holds results of another version of {now.study} ({begun.version}, "
            f"{begun.digest}; this program has {now.version}, {now.digest}); {elsewhere}"
        )
    for flag, then, here in (
        ("--data", begun.data, now.data),
        ("--transfer", begun.transfer, now.transfer),
    ):
        if then != here:
            raise ConfigError(
                f"{flag}: the images are not those that {folder} began with; put them back, or "
                f"{elsewhere}"
            )
    for flag, was, wanted in (
        ("--budget", begun.budget, now.budget),
        ("--precision", begun.precision, now.precision),
    ):
        if was != wanted:
            began = (
                f"with {flag} {_format_flag_value(was)}" if was is not None else f"without {flag}"
            )
            raise ConfigError(f"{folder} was begun {began}; say the same, or {elsewhere}")


def read_trial_metrics(path: Path) -> dict[str, float | None] | None:
    """The numbers of a cell; None where it is not done."""
    if not path.is_file():
        return None
    found: dict[str, float | None] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_trial_metrics(path: Path, numbers: dict[str, float | None]) -> None:
    """All of them or none: a cell with this file is done."""
    write_atomically(path, json.dumps(numbers, indent=1) + "\n")


def _format_flag_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
