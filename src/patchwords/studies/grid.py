"""The cells of a study, one after the other, shared out among all who work in its folder.

A cell belongs to whoever holds its lock, which is the system's: that of a killed process is gone
with it, and the next one that comes by goes on with the cell. So any number of processes may work
in one folder, started together or by hand, on machines that share a file system with locks.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from patchwords.errors import ConfigError
from patchwords.files import explain_write_error, file_lock, write_atomically
from patchwords.studies.study import (
    RESULT_FILE,
    TEST_RESULT_FILE,
    ScaleName,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
)
from patchwords.studies.training import train_and_measure
from patchwords.training.logs.run_folder import write_json

# What lies in the folder of a study, and whether it is this study's.
#
# DIR/study.json                  which study, at which scale, on which data, how long
# DIR/cells/NAME-SEED/result.json what the cell came to; there when it is done
# DIR/cells/NAME-SEED/judged.json its test accuracy, where it was chosen
# DIR/cells/NAME-SEED/run/        the run folder of a training; log.txt: what it said
# DIR/shared/                     what several cells use


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


Stage = Literal["measure", "judge"]
STAGE_FILES: dict[Stage, str] = {"measure": RESULT_FILE, "judge": TEST_RESULT_FILE}
POLL_SECONDS = 0.5  # seconds between two looks at cells that others are at

StatusCallback = Callable[[str], None]


def run_trials(
    study: Study,
    encoders: Sequence[Trial],
    cells: Sequence[Trial],
    bench: StudyContext,
    tell: StatusCallback,
) -> None:
    """Pre-train, measure every cell, choose by what all came to, and judge what was chosen."""
    run_stage(study, encoders, bench, "measure", tell)
    run_stage(study, cells, bench, "measure", tell)
    run_stage(study, list_chosen_trials(study, cells, bench), bench, "judge", tell)


def list_chosen_trials(study: Study, cells: Sequence[Trial], bench: StudyContext) -> list[Trial]:
    """The cells that are judged, once all are measured."""
    if study.judge is None:
        return []
    names = set(choose_labelled_trials(study, cells, bench).values())
    return [cell for cell in cells if cell.name in names]


def choose_labelled_trials(
    study: Study, cells: Sequence[Trial], bench: StudyContext
) -> dict[str, str]:
    """Label -> cell, by validation accuracy alone."""
    return study.choose(
        bench.scale.grid,
        collect_validation_accuracies(collect_trial_metrics(cells, bench, "measure")),
    )


def collect_validation_accuracies(
    found: Mapping[tuple[str, int], TrialMetrics],
) -> dict[str, list[float | None]]:
    """Cell -> its validation accuracy, seed by seed."""
    table: dict[str, list[float | None]] = {}
    for (name, _), numbers in sorted(found.items(), key=lambda item: item[0][1]):
        table.setdefault(name, []).append(numbers.get("validation"))
    return table


def run_stage(
    study: Study, cells: Sequence[Trial], bench: StudyContext, stage: Stage, tell: StatusCallback
) -> None:
    """Do every cell that is neither done nor being done; then wait for those that others are at."""

    def count(line: str) -> None:
        done = sum((bench.place(cell) / STAGE_FILES[stage]).is_file() for cell in cells)
        word = "pre-trained" if cells[0].shared else f"{stage}d"
        tell(f"{word} {done} of {len(cells)}: {line}")

    left = list(cells)
    while left:
        others = [cell for cell in left if not try_run_trial(study, cell, bench, stage, count)]
        if others:
            time.sleep(POLL_SECONDS)
        left = others


def try_run_trial(
    study: Study, cell: Trial, bench: StudyContext, stage: Stage, tell: StatusCallback
) -> bool:
    """Do the cell unless somebody else is at it; -> whether it is done."""
    place = bench.place(cell)
    file = place / STAGE_FILES[stage]
    if file.is_file():
        return True
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, place) from error
    with file_lock(place / ".lock", wait=False) as mine:
        if not mine:
            return False
        if not file.is_file():
            start = time.monotonic()
            numbers = dict(run_trial(study, cell, bench, stage))
            write_trial_metrics(file, numbers)
            tell(format_trial_line(cell, numbers, time.monotonic() - start))
    return True


def run_trial(study: Study, cell: Trial, bench: StudyContext, stage: Stage) -> TrialMetrics:
    """The numbers of one cell in one stage; what diverged has no accuracy to be judged."""
    if cell.shared:
        return train_and_measure(cell, bench)
    if stage == "measure":
        return study.measure(cell, bench)
    assert study.judge is not None
    measured = read_trial_metrics(bench.place(cell) / RESULT_FILE) or {}
    return {"accuracy": None} if measured.get("diverged") else study.judge(cell, bench)


def collect_trial_metrics(
    cells: Sequence[Trial], bench: StudyContext, stage: Stage
) -> dict[tuple[str, int], TrialMetrics]:
    """(name, seed) -> the numbers of every cell that is done."""
    found: dict[tuple[str, int], TrialMetrics] = {}
    for cell in cells:
        numbers = read_trial_metrics(bench.place(cell) / STAGE_FILES[stage])
        if numbers is not None:
            found[cell.name, cell.seed] = numbers
    return found


def format_trial_line(cell: Trial, numbers: TrialMetrics, seconds: float) -> str:
    """A finished cell, for a person."""
    if numbers.get("diverged"):
        return f"{cell.words}: diverged"
    shown = (
        f"{word} {numbers[key]:.1%}"
        for key, word in (("validation", "validation"), ("accuracy", "accuracy"))
        if numbers.get(key) is not None
    )
    return f"{cell.words}: {', '.join((*shown, f'{seconds:.0f} s'))}"
