"""Several runs in one folder: finished runs are kept, interrupted ones resumed."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchwords.data.dataset import ImageDataset
from patchwords.device import choose_device
from patchwords.distributed import broadcast_from_main, get_world, run_on_main_process
from patchwords.errors import ConfigError, Interrupted
from patchwords.evaluation.held_out import (
    choose_final_split,
    evaluate_finished_run,
)
from patchwords.evaluation.probes.fewshot import measure_fewshot
from patchwords.training.config import (
    CHANGEABLE_ON_RESUME,
    FinetuneConfig,
    flatten_config,
    read_config_yaml,
    unflatten_config,
)
from patchwords.training.logs.display import Display
from patchwords.training.logs.run_folder import RunFolder, claim_run_folder
from patchwords.training.logs.run_record import format_launch_prefix, write_run_settings
from patchwords.training.run import train_model
from patchwords.training.settings import FinetuneConfigT
from patchwords.training.training_run import TrainingRun

# (run folder, test images): writes the report of a finished run
ReportWriter = Callable[[Path, ImageDataset], object]


def open_series(
    config: FinetuneConfig, asked: FinetuneConfig, output: Path, about: Mapping[str, str]
) -> RunFolder:
    """Claim the folder and write or match its manifest; `about` describes the data.

    Raises ConfigError if the folder holds something else, or other data.
    """
    folder = RunFolder(output)
    if config.resume:
        require_same_data(folder, about)
    run_on_main_process(
        lambda: claim_run_folder(output, resume=config.resume, overwrite=config.overwrite)
    )
    device = choose_device(config.machine.device, config.machine.precision)
    run_on_main_process(lambda: write_run_settings(folder, config, asked, about, device))
    return folder


def require_same_data(folder: RunFolder, about: Mapping[str, str]) -> None:
    """Raise ConfigError if the images are not those that the series started with."""
    try:
        began = json.loads(folder.environment.read_text(encoding="utf-8"))["data"]["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # lost the race; each run knows its own
    if began != about["fingerprint"]:
        raise ConfigError(
            f"--resume: {about['source']} is not as it was when {folder.path} began; put the "
            "images back, or start again with another --output"
        )


def build_run_config(config: FinetuneConfig, output: Path) -> FinetuneConfig:
    """Build the settings of one run of the series."""
    known = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(FinetuneConfig)
    }
    return FinetuneConfig(**{**known, "output": str(output), "resume": False, "overwrite": False})


def train_or_resume(config: FinetuneConfig, display: Display) -> TrainingRun:
    """Train a run, resuming it exactly if it was started."""
    return train_model(resume_if_started(config), display, measure_fewshot)


def resume_if_started(config: FinetuneConfigT) -> FinetuneConfigT:
    """Return the settings, or those that resume the run exactly if it was started."""
    assert config.output is not None
    folder = RunFolder(Path(config.output))
    if broadcast_from_main(folder.config.is_file()):
        here = {
            name: value
            for name, value in flatten_config(config).items()
            if name in CHANGEABLE_ON_RESUME
        }
        stored = unflatten_config(config, read_config_yaml(folder.config))
        config = unflatten_config(stored, {**here, "data": config.data, "resume": True})
    return config


def is_run_finished(folder: RunFolder, report: ReportWriter | None) -> bool:
    """Whether the run has been evaluated and has a report."""
    page = report is None or (folder.path / "report.html").is_file()
    return bool(broadcast_from_main(folder.evaluation.is_file() and page))


def evaluate_and_report(job: TrainingRun, report: ReportWriter | None) -> None:
    """Evaluate a finished training on test, once, and write its report (main process)."""

    def judge() -> None:
        if not job.folder.evaluation.is_file():
            evaluate_finished_run(job)
        if report is not None:
            report(job.folder.path, choose_final_split(job.data)[1])

    run_on_main_process(judge)


def read_evaluation(folder: RunFolder) -> dict[str, Any]:
    """Read evaluation.json of a finished run."""
    evaluation: dict[str, Any] = json.loads(folder.evaluation.read_text(encoding="utf-8"))
    return evaluation


@contextmanager
def add_resume_hint(config: FinetuneConfig, output: Path) -> Iterator[None]:
    """Add to any interruption inside how to resume the whole series."""
    words = ["patchwords", config.verb, config.data, "--output", str(output), "--resume"]
    command = format_launch_prefix(get_world()) + shlex.join(words)
    try:
        yield
    except Interrupted as error:
        what = str(error).partition("; go on with")[0]
        raise Interrupted(f"{what}; go on with: {command}", error.exit_code) from error
    except KeyboardInterrupt as error:  # between two runs
        raise Interrupted(f"stopped between two runs; go on with: {command}") from error
