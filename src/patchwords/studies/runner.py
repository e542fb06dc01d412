"""Run a study: check the request, train, choose, evaluate, summarise."""

from __future__ import annotations

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
from patchwords.planning.matmul_peak import measure_matmul_peak
from patchwords.processes import count_usable_cores
from patchwords.studies.budget import (
    SCRATCH_PREFIX,
    StudyWorkload,
    estimate_trial_cost,
    measure_trial_timing,
    refuse_hopeless_budget,
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
    """What `patchwords study` was asked to run."""

    study: Study
    scale: ScaleName
    output: Path
    data: str | None
    transfer: str | None = None
    seeds: int | None = None  # None: the study's default
    budget: float | None = None  # minutes
    jobs: int | None = None  # None: one per core, or one on a GPU
    device: DeviceName = "auto"
    precision: PrecisionName = "auto"

    @property
    def scale_spec(self) -> Scale:
        return self.study.scales[self.scale]

    @property
    def processes(self) -> tuple[int, int]:
        """Number of worker processes and threads per process."""
        cores = count_usable_cores()
        cuda = choose_device(self.device).type == "cuda"
        jobs = self.jobs or (1 if cuda or self.study.timed else cores)
        return jobs, max(1, cores // jobs)


def execute_study(request: StudyRequest, report: StatusCallback, going_on: str) -> dict[str, Any]:
    """Run what is left of a study and return its results, which are also in its folder.

    Raises ConfigError and DataError before the first trial, Interrupted with `going_on`, the
    command that continues the study.
    """
    context, record = prepare_study(request, report)
    trials = request.scale_spec.list_trials(record.seeds, record.share)
    encoders = request.scale_spec.list_pretrainings(record.seeds, record.share)
    done = len(collect_trial_metrics(trials, context, "measure"))
    first = f"{len(encoders)} pre-trainings, then " if encoders else ""
    report(f"{first}{len(trials)} trials" + (f", {done} of them done" if done else ""))
    jobs, threads = request.processes
    try:
        if not is_study_done(request.study, trials, context):
            work = partial(run_trials, request.study, encoders, trials, context)
            run_workers(work, min(jobs, len(trials)), threads, report)
        if not is_study_done(request.study, trials, context):
            raise Interrupted("a process was told to stop", 143)
    except (Interrupted, KeyboardInterrupt) as error:
        done = len(collect_trial_metrics(trials, context, "measure"))
        code = error.exit_code if isinstance(error, Interrupted) else 130
        raise Interrupted(
            f"stopped with {done} of {len(trials)} trials done; continue with: {going_on}", code
        ) from error
    return {
        **assemble_results(request.study, record, encoders, trials, context),
        "command": going_on,
    }


def is_study_done(study: Study, trials: list[Trial], context: StudyContext) -> bool:
    """Whether every trial is measured and every chosen one evaluated on test."""
    if len(collect_trial_metrics(trials, context, "measure")) < len(trials):
        return False
    picked = list_chosen_trials(study, trials, context)
    return len(collect_trial_metrics(picked, context, "judge")) == len(picked)


def prepare_study(
    request: StudyRequest, report: StatusCallback
) -> tuple[StudyContext, StudyManifest]:
    """Check the request, then claim the folder or match it to its manifest."""
    validate_study_request(request)
    begun = read_study_manifest(request.output)
    if begun is not None:  # before opening the data, which may take a while
        now = build_manifest(request, begun.data, begun.transfer)
        require_same_study(request.output, begun, now)
    for place in filter(None, (request.data, request.transfer)):
        check_output_overlap(request.output, Path(place), None)
    context = StudyContext(
        request.output,
        request.scale_spec,
        request.data,
        request.transfer,
        request.device,
        request.precision,
    )
    record = build_manifest(request, *fingerprint_study_data(request, context))
    try:
        request.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, request.output) from error
    with file_lock(request.output / ".study.lock"):
        return context, load_or_create_manifest(request, context, record, report)


def validate_study_request(request: StudyRequest) -> None:
    """Check a request without opening the folder or the data; raise ConfigError."""
    scale, name = request.scale_spec, f"{request.study.name} at scale {request.scale}"
    if get_world().size > 1:
        raise ConfigError(
            "a study shares its trials among separate processes: leave torchrun out, use "
            "--jobs, or start the command several times with the same --output"
        )
    if scale.data is not None and request.data is None:
        raise ConfigError(f"{name} needs {scale.data.description}: give it by --data")
    if scale.data is None and request.data is not None:
        raise ConfigError(f"{name} learns nothing, so it has no use for --data; leave it out")
    if scale.transfer is not None and request.transfer is None:
        use = "trains its trials" if scale.tuned else "is evaluated"
        raise ConfigError(f"{name} {use} on {scale.transfer.description}: give it by --transfer")
    if scale.transfer is None and request.transfer is not None:
        raise ConfigError(f"{name} has no use for --transfer {request.transfer}; leave it out")
    for flag, value in (
        ("seeds", request.seeds),
        ("budget", request.budget),
        ("jobs", request.jobs),
    ):
        if value is not None and not value > 0:
            raise ConfigError(f"--{flag} {value:g} must be greater than 0")
    if request.study.timed and request.processes[0] > 1:
        raise ConfigError(f"--jobs {request.jobs}: {name} measures time, one cell after the other")
    if request.budget is not None and not list_training_trials(scale):
        raise ConfigError(f"--budget {request.budget:g}: {name} trains nothing that it could trim")
    if request.budget is not None and not can_be_trimmed(scale):
        raise ConfigError(
            f"--budget {request.budget:g}: {name} is not trimmed, as its trainings take their "
            "length from a recipe; --plan says what it costs"
        )


def fingerprint_study_data(
    request: StudyRequest, context: StudyContext
) -> tuple[str | None, str | None]:
    """Open the training and transfer images, and fingerprint both."""
    if request.data is None:
        return None, None
    trials = request.scale_spec.list_trials(1)
    judged = request.study.evaluate_trial is not None and request.scale_spec.shots is None
    data = {
        place: load_study_data(place, context, trials)
        for place in (request.data, request.transfer)
        if place
    }
    learned = data[
        request.transfer if request.scale_spec.tuned and request.transfer else request.data
    ]
    if judged and not len(learned.splits.get(TEST, ())):
        raise DataError(
            f"{learned.source} has no test images, by which {request.study.name} is judged: "
            f"it needs {request.scale_spec.train_data.description}"
        )
    transfer = None if request.transfer is None else fingerprint_dataset(data[request.transfer])
    return fingerprint_dataset(data[request.data]), transfer


def load_study_data(place: str, context: StudyContext, trials: list[Trial]) -> DatasetSplits:
    """Load the data with the splits of the trainings; as they are without trainings."""
    there = [*context.scale.list_pretrainings(1), *trials]
    for trial in there:
        if trial.settings[VERB] != "none" and select_trial_data(trial, context) == place:
            return load_dataset_splits(build_training_config(trial, context))
    return open_data(place)


def build_manifest(request: StudyRequest, data: str | None, transfer: str | None) -> StudyManifest:
    """Build the manifest of a request, before a budget cuts it."""
    return StudyManifest(
        request.study.name,
        request.scale,
        request.study.version,
        compute_study_digest(request.study, request.scale),
        data,
        transfer,
        request.precision,
        request.budget,
        request.seeds or request.scale_spec.seeds,
    )


def load_or_create_manifest(
    request: StudyRequest, context: StudyContext, record: StudyManifest, report: StatusCallback
) -> StudyManifest:
    """Read the manifest or create it; the caller holds the folder's lock."""
    begun = read_study_manifest(request.output)
    if begun is not None:
        require_same_study(request.output, begun, record)
        if request.budget is not None:
            return begun
        record = replace(begun, seeds=record.seeds)  # the number of seeds changes no trial
    elif request.budget is not None:
        record = trim_manifest(request, context, record, report)
    record.write(request.output)
    for note in record.notes:
        report(note)
    return record


def trim_manifest(
    request: StudyRequest, context: StudyContext, record: StudyManifest, report: StatusCallback
) -> StudyManifest:
    """Cut the manifest to the budget by a measured speed."""
    assert request.budget is not None
    for left in request.output.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    jobs, threads = request.processes
    trials = list_training_trials(request.scale_spec)
    costs = [estimate_trial_cost(trial, context) for trial in trials]
    steps = tuple(trial.settings["steps"] for trial in trials)
    work = StudyWorkload(steps, record.seeds, jobs, tuple(cost.share for cost in costs))
    peak = measure_matmul_peak(choose_device(request.device, request.precision))
    refuse_hopeless_budget(work, [cost.step_flops for cost in costs], peak, request.budget)
    report("timing the most expensive trial")
    costliest, _ = max(zip(trials, costs, strict=True), key=lambda item: item[1].step_flops)
    speed = measure_trial_timing(costliest, context, jobs, threads)
    trimmed = trim_workload(work, speed, request.budget)
    return replace(record, seeds=trimmed.seeds, share=trimmed.share, notes=trimmed.notes)


def list_training_trials(scale: Scale) -> list[Trial]:
    """List everything that is trained for one seed."""
    every = [*scale.list_pretrainings(1), *scale.list_trials(1)]
    return [trial for trial in every if trial.settings[VERB] != "none"]


def can_be_trimmed(scale: Scale) -> bool:
    """Whether the trial sets its own number of steps."""
    return all("steps" in trial.settings for trial in list_training_trials(scale))
