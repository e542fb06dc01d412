"""Trials of a study, run by any number of processes that share its folder.

A trial belongs to the process that holds its file lock. The lock ends with its process, so the
next process resumes the trial of a killed one. Processes may be started together or by hand, on
machines that share a file system with locks.

    DIR/study.json                  study, scale, data, budget: the manifest
    DIR/cells/NAME-SEED/result.json metrics of a finished trial
    DIR/cells/NAME-SEED/judged.json its test accuracy, if it was chosen
    DIR/cells/NAME-SEED/run/        run folder of a training; log.txt: its output
    DIR/shared/                     what several trials use
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

MANIFEST_FILE = "study.json"


@dataclass(frozen=True)
class StudyManifest:
    """Identity of the study in a folder: grid, data, budget."""

    study: str
    scale: ScaleName
    version: int
    digest: str  # of the grid and the settings
    data: str | None  # fingerprint of --data
    transfer: str | None  # fingerprint of --transfer
    precision: str
    budget: float | None  # minutes
    seeds: int
    share: float = 1.0  # of the steps of every training
    notes: tuple[str, ...] = ()  # on what the budget cut

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST_FILE, asdict(self))


def compute_study_digest(study: Study, scale: ScaleName) -> str:
    """Digest everything that decides what a trial computes."""
    spec = study.scales[scale]
    identity = {
        "version": study.version,
        "settings": dict(spec.settings),
        "grid": {name: dict(settings) for name, settings in spec.grid.items()},
        "encoders": {name: dict(settings) for name, settings in spec.encoders.items()},
        "about": [spec.verb, spec.tuned, spec.shots],
    }
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_study_manifest(folder: Path) -> StudyManifest | None:
    """Read the manifest; None for a new folder, ConfigError for a folder of something else."""
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
        content: dict[str, Any] = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return StudyManifest(**{**content, "notes": tuple(content["notes"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{folder / MANIFEST_FILE} is damaged ({error}); choose another --output"
        ) from error


def require_same_study(folder: Path, begun: StudyManifest, now: StudyManifest) -> None:
    """Raise ConfigError if the folder holds another study, scale, grid or data."""
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
    for flag, recorded, current in (
        ("--data", begun.data, now.data),
        ("--transfer", begun.transfer, now.transfer),
    ):
        if recorded != current:
            raise ConfigError(
                f"{flag}: the images are not those that {folder} was started with; put them back, or "
                f"{elsewhere}"
            )
    for flag, before, expected in (
        ("--budget", begun.budget, now.budget),
        ("--precision", begun.precision, now.precision),
    ):
        if before != expected:
            began = (
                f"with {flag} {_format_flag_value(before)}"
                if before is not None
                else f"without {flag}"
            )
            raise ConfigError(f"{folder} was started {began}; use the same, or {elsewhere}")


def read_trial_metrics(path: Path) -> dict[str, float | None] | None:
    """Read the metrics of a trial; None if it is not finished."""
    if not path.is_file():
        return None
    found: dict[str, float | None] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_trial_metrics(path: Path, numbers: dict[str, float | None]) -> None:
    """Write the metrics of a trial atomically: the file marks it as finished."""
    write_atomically(path, json.dumps(numbers, indent=1) + "\n")


def _format_flag_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


Stage = Literal["measure", "judge"]
STAGE_FILES: dict[Stage, str] = {"measure": RESULT_FILE, "judge": TEST_RESULT_FILE}
POLL_SECONDS = 0.5  # seconds between checks of trials that other processes run

StatusCallback = Callable[[str], None]


def run_trials(
    study: Study,
    encoders: Sequence[Trial],
    trials: Sequence[Trial],
    context: StudyContext,
    report: StatusCallback,
) -> None:
    """Pre-train, measure every trial, choose by validation, evaluate the chosen on test."""
    run_stage(study, encoders, context, "measure", report)
    run_stage(study, trials, context, "measure", report)
    run_stage(study, list_chosen_trials(study, trials, context), context, "judge", report)


def list_chosen_trials(study: Study, trials: Sequence[Trial], context: StudyContext) -> list[Trial]:
    """List the trials to evaluate on test, once all are measured."""
    if study.evaluate_trial is None:
        return []
    names = set(choose_labelled_trials(study, trials, context).values())
    return [trial for trial in trials if trial.name in names]


def choose_labelled_trials(
    study: Study, trials: Sequence[Trial], context: StudyContext
) -> dict[str, str]:
    """Choose a trial per label by validation accuracy alone."""
    return study.choose_trials(
        context.scale.grid,
        collect_validation_accuracies(collect_trial_metrics(trials, context, "measure")),
    )


def collect_validation_accuracies(
    found: Mapping[tuple[str, int], TrialMetrics],
) -> dict[str, list[float | None]]:
    """Collect the validation accuracies of every trial, by seed."""
    table: dict[str, list[float | None]] = {}
    for (name, _), numbers in sorted(found.items(), key=lambda item: item[0][1]):
        table.setdefault(name, []).append(numbers.get("validation"))
    return table


def run_stage(
    study: Study,
    trials: Sequence[Trial],
    context: StudyContext,
    stage: Stage,
    report: StatusCallback,
) -> None:
    """Run every trial that is free, then wait for those of other processes."""

    def count(line: str) -> None:
        done = sum((context.trial_folder(trial) / STAGE_FILES[stage]).is_file() for trial in trials)
        word = "pre-trained" if trials[0].shared else f"{stage}d"
        report(f"{word} {done} of {len(trials)}: {line}")

    remaining = list(trials)
    while remaining:
        busy = [
            trial for trial in remaining if not try_run_trial(study, trial, context, stage, count)
        ]
        if busy:
            time.sleep(POLL_SECONDS)
        remaining = busy


def try_run_trial(
    study: Study, trial: Trial, context: StudyContext, stage: Stage, report: StatusCallback
) -> bool:
    """Run the trial unless another process holds it; return whether it is finished."""
    place = context.trial_folder(trial)
    file = place / STAGE_FILES[stage]
    if file.is_file():
        return True
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, place) from error
    with file_lock(place / ".lock", wait=False) as acquired:
        if not acquired:
            return False
        if not file.is_file():
            start = time.monotonic()
            numbers = dict(run_trial(study, trial, context, stage))
            write_trial_metrics(file, numbers)
            report(format_trial_line(trial, numbers, time.monotonic() - start))
    return True


def run_trial(study: Study, trial: Trial, context: StudyContext, stage: Stage) -> TrialMetrics:
    """Compute the metrics of a trial in one stage; a diverged one has no test accuracy."""
    if trial.shared:
        return train_and_measure(trial, context)
    if stage == "measure":
        return study.measure_trial(trial, context)
    assert study.evaluate_trial is not None
    measured = read_trial_metrics(context.trial_folder(trial) / RESULT_FILE) or {}
    return {"accuracy": None} if measured.get("diverged") else study.evaluate_trial(trial, context)


def collect_trial_metrics(
    trials: Sequence[Trial], context: StudyContext, stage: Stage
) -> dict[tuple[str, int], TrialMetrics]:
    """Collect the metrics of all finished trials by (name, seed)."""
    metrics: dict[tuple[str, int], TrialMetrics] = {}
    for trial in trials:
        numbers = read_trial_metrics(context.trial_folder(trial) / STAGE_FILES[stage])
        if numbers is not None:
            metrics[trial.name, trial.seed] = numbers
    return metrics


def format_trial_line(trial: Trial, numbers: TrialMetrics, seconds: float) -> str:
    """Format a finished trial as a progress line."""
    if numbers.get("diverged"):
        return f"{trial.title}: diverged"
    shown = (
        f"{word} {numbers[key]:.1%}"
        for key, word in (("validation", "validation"), ("accuracy", "accuracy"))
        if numbers.get(key) is not None
    )
    return f"{trial.title}: {', '.join((*shown, f'{seconds:.0f} s'))}"
