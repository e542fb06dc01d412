"""The cells of a study, one after the other, shared out among all who work in its folder.

A cell belongs to whoever holds its lock, which is the system's: that of a killed process is gone
with it, and the next one that comes by goes on with the cell. So any number of processes may work
in one folder, started together or by hand, on machines that share a file system with locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from patchwords.data.shard_cache import file_lock
from patchwords.files import explain_write_error
from patchwords.studies.bench import RESULT_FILE, TEST_RESULT_FILE, StudyContext
from patchwords.studies.record import read_trial_metrics, write_trial_metrics
from patchwords.studies.study import Study, Trial, TrialMetrics
from patchwords.studies.training import train_and_measure

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
