"""A study from its command to its results: make ready, train, choose, judge, sum up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from patchwords.data.dataset import TEST, DatasetSplits
from patchwords.data.open import open_data
from patchwords.data.splits import fingerprint_dataset
from patchwords.device import DeviceName, PrecisionName, choose_device
from patchwords.distributed import get_world
from patchwords.errors import ConfigError, DataError, Interrupted
from patchwords.files import explain_write_error, file_lock
from patchwords.studies.budget import (
    SCRATCH_PREFIX,
    StudyWorkload,
    estimate_trial_cost,
    measure_trial_timing,
    trim_workload,
)
from patchwords.studies.grid import (
    StudyManifest,
    collect_trial_metrics,
    compute_study_digest,
    list_chosen_trials,
    read_study_manifest,
    require_same_study,
    run_trials,
)
from patchwords.studies.results import assemble_results
from patchwords.studies.study import VERB, Scale, ScaleName, Study, StudyContext, Trial
from patchwords.studies.training import build_training_config, select_trial_data
from patchwords.studies.workers import run_workers
from patchwords.training.data_setup import load_dataset_splits
from patchwords.training.logs.run_folder import check_output_overlap

StatusCallback = Callable[[str], None]


@dataclass(frozen=True)
class StudyRequest:
    """What a command asks for."""

    study: Study
    scale: ScaleName
    output: Path
    data: str | None
    transfer: str | None = None
    seeds: int | None = None  # None: as many as the study has
    budget: float | None = None  # minutes
    jobs: int | None = None  # None: one for each core, on a GPU one
    device: DeviceName = "auto"
    precision: PrecisionName = "auto"

    @property
    def at(self) -> Scale:
        return self.study.scales[self.scale]

    @property
    def crew(self) -> tuple[int, int]:
        """(processes, threads of each)"""
        cores = len(os.sched_getaffinity(0))
        cuda = choose_device(self.device).type == "cuda"
        jobs = self.jobs or (1 if cuda or self.study.timed else cores)
        return jobs, max(1, cores // jobs)


def execute_study(asked: StudyRequest, tell: StatusCallback, going_on: str) -> dict[str, Any]:
    """Do what is left of the study; -> its results, which lie in its folder, too.

    Raises ConfigError and DataError before the first cell, Interrupted with `going_on`, the
    command that goes on.
    """
    bench, record = prepare_study(asked, tell)
    cells = asked.at.cells(record.seeds, record.share)
    encoders = asked.at.pretrainings(record.seeds, record.share)
    done = len(collect_trial_metrics(cells, bench, "measure"))
    first = f"{len(encoders)} pre-trainings, then " if encoders else ""
    tell(f"{first}{len(cells)} cells" + (f", {done} of them done" if done else ""))
    jobs, threads = asked.crew
    try:
        if not is_study_done(asked.study, cells, bench):
            work = partial(run_trials, asked.study, encoders, cells, bench)
            run_workers(work, min(jobs, len(cells)), threads, tell)
        if not is_study_done(asked.study, cells, bench):
            raise Interrupted("a process was told to stop", 143)
    except (Interrupted, KeyboardInterrupt) as error:
        done = len(collect_trial_metrics(cells, bench, "measure"))
        code = error.exit_code if isinstance(error, Interrupted) else 130
        raise Interrupted(
            f"stopped with {done} of {len(cells)} cells done; go on with: {going_on}", code
        ) from error
    return {**assemble_results(asked.study, record, encoders, cells, bench), "command": going_on}


def is_study_done(study: Study, cells: list[Trial], bench: StudyContext) -> bool:
    """Whether every cell is measured, and every chosen one judged."""
    if len(collect_trial_metrics(cells, bench, "measure")) < len(cells):
        return False
    picked = list_chosen_trials(study, cells, bench)
    return len(collect_trial_metrics(picked, bench, "judge")) == len(picked)


def prepare_study(asked: StudyRequest, tell: StatusCallback) -> tuple[StudyContext, StudyManifest]:
    """Refuse what cannot be done; claim the folder, or find it as this command left it."""
    validate_study_request(asked)
    begun = read_study_manifest(asked.output)
    if begun is not None:  # before the data are opened, which may take a while
        now = build_manifest(asked, begun.data, begun.transfer)
        require_same_study(asked.output, begun, now)
    for place in filter(None, (asked.data, asked.transfer)):
        check_output_overlap(asked.output, Path(place), None)
    bench = StudyContext(
        asked.output, asked.at, asked.data, asked.transfer, asked.device, asked.precision
    )
    record = build_manifest(asked, *fingerprint_study_data(asked, bench))
    try:
        asked.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, asked.output) from error
    with file_lock(asked.output / ".study.lock"):
        return bench, load_or_create_manifest(asked, bench, record, tell)


def validate_study_request(asked: StudyRequest) -> None:
    """Raise ConfigError for what needs no look at the folder or the data."""
    scale, name = asked.at, f"{asked.study.name} at scale {asked.scale}"
    if get_world().size > 1:
        raise ConfigError(
            "a study shares its cells out among separate processes: leave torchrun out, say "
            "--jobs, or start the command several times with the same --output"
        )
    if scale.data is not None and asked.data is None:
        raise ConfigError(f"{name} needs {scale.data.what}: give it by --data")
    if scale.data is None and asked.data is not None:
        raise ConfigError(f"{name} learns nothing, so it has no use for --data; leave it out")
    if scale.transfer is not None and asked.transfer is None:
        use = "trains its cells" if scale.tuned else "is judged"
        raise ConfigError(f"{name} {use} on {scale.transfer.what}: give it by --transfer")
    if scale.transfer is None and asked.transfer is not None:
        raise ConfigError(f"{name} has no use for --transfer {asked.transfer}; leave it out")
    for flag, value in (("seeds", asked.seeds), ("budget", asked.budget), ("jobs", asked.jobs)):
        if value is not None and not value > 0:
            raise ConfigError(f"--{flag} {value:g} must be greater than 0")
    if asked.study.timed and asked.crew[0] > 1:
        raise ConfigError(f"--jobs {asked.jobs}: {name} measures time, one cell after the other")
    if asked.budget is not None and not list_training_trials(scale):
        raise ConfigError(f"--budget {asked.budget:g}: {name} trains nothing that it could trim")
    if asked.budget is not None and not can_be_trimmed(scale):
        raise ConfigError(
            f"--budget {asked.budget:g}: {name} is not trimmed, as its trainings take their "
            "length from a recipe; --plan says what it costs"
        )


def fingerprint_study_data(
    asked: StudyRequest, bench: StudyContext
) -> tuple[str | None, str | None]:
    """Of the images that are learned from, and of those to judge by; both are opened."""
    if asked.data is None:
        return None, None
    cells = asked.at.cells(1)
    judged = asked.study.judge is not None and asked.at.shots is None
    data = {
        place: load_study_data(place, bench, cells)
        for place in (asked.data, asked.transfer)
        if place
    }
    learned = data[asked.transfer if asked.at.tuned and asked.transfer else asked.data]
    if judged and not len(learned.splits.get(TEST, ())):
        raise DataError(
            f"{learned.source} has no test images, by which {asked.study.name} is judged: "
            f"it needs {asked.at.learned.what}"
        )
    transfer = None if asked.transfer is None else fingerprint_dataset(data[asked.transfer])
    return fingerprint_dataset(data[asked.data]), transfer


def load_study_data(place: str, bench: StudyContext, cells: list[Trial]) -> DatasetSplits:
    """The data as the trainings on it divide them; as they are, where there are none."""
    there = [*bench.scale.pretrainings(1), *cells]
    for cell in there:
        if cell.settings[VERB] != "none" and select_trial_data(cell, bench) == place:
            return load_dataset_splits(build_training_config(cell, bench))
    return open_data(place)


def build_manifest(asked: StudyRequest, data: str | None, transfer: str | None) -> StudyManifest:
    """What this command would begin, but for what a budget leaves of it."""
    return StudyManifest(
        asked.study.name,
        asked.scale,
        asked.study.version,
        compute_study_digest(asked.study, asked.scale),
        data,
        transfer,
        asked.precision,
        asked.budget,
        asked.seeds or asked.at.seeds,
    )


def load_or_create_manifest(
    asked: StudyRequest, bench: StudyContext, record: StudyManifest, tell: StatusCallback
) -> StudyManifest:
    """With the folder's lock held: what was begun there, or what now begins."""
    begun = read_study_manifest(asked.output)
    if begun is not None:
        require_same_study(asked.output, begun, record)
        if asked.budget is not None:
            return begun
        record = replace(begun, seeds=record.seeds)  # more of them, or fewer, change no cell
    elif asked.budget is not None:
        record = trim_manifest(asked, bench, record, tell)
    record.write(asked.output)
    for note in record.notes:
        tell(note)
    return record


def trim_manifest(
    asked: StudyRequest, bench: StudyContext, record: StudyManifest, tell: StatusCallback
) -> StudyManifest:
    """As much as fits into the budget, by a measured speed."""
    assert asked.budget is not None
    for left in asked.output.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    jobs, threads = asked.crew
    tell("measuring how long the dearest cell takes")
    cells = list_training_trials(asked.at)
    costs = [estimate_trial_cost(cell, bench) for cell in cells]
    dearest, _ = max(zip(cells, costs, strict=True), key=lambda one: one[1].of_a_step)
    speed = measure_trial_timing(dearest, bench, jobs, threads)
    steps = tuple(cell.settings["steps"] for cell in cells)
    shares = tuple(cost.share for cost in costs)
    found = trim_workload(StudyWorkload(steps, record.seeds, jobs, shares), speed, asked.budget)
    return replace(record, seeds=found.seeds, share=found.share, notes=found.notes)


def list_training_trials(scale: Scale) -> list[Trial]:
    """All that is trained for one seed."""
    every = [*scale.pretrainings(1), *scale.cells(1)]
    return [cell for cell in every if cell.settings[VERB] != "none"]


def can_be_trimmed(scale: Scale) -> bool:
    """Whether it says itself how many steps its trainings take."""
    return all("steps" in cell.settings for cell in list_training_trials(scale))
