"""The learning rate by the paper's protocol (Table 4, Appendix B.1.1).

Each rate of a grid is trained on the training images but for a dev split, and judged by that. The
best one is then trained on all training images, and the test images are read, once, by this final
run. A sweep that was stopped goes on: rates that are done are not trained again, and the run that
was cut off goes on from its checkpoint, exactly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patchwords.data.examples import VALIDATION, DatasetSplits
from patchwords.data.split import fingerprint_dataset
from patchwords.distributed import broadcast_from_main, run_on_all_processes, run_on_main_process
from patchwords.errors import DataError, Diverged
from patchwords.evaluate.metrics import proportion_with_interval
from patchwords.evaluate.series import (
    ReportWriter,
    add_resume_hint,
    evaluate_and_report,
    is_run_finished,
    open_series,
    read_evaluation,
    train_or_resume,
)
from patchwords.evaluate.spread import SeedStatistics, compute_seed_statistics
from patchwords.evaluate.sweep_config import SweepConfig
from patchwords.evaluate.sweep_plan import (
    build_sweep_final_config,
    build_sweep_trial_config,
    plan_sweep,
)
from patchwords.train.finetune import share_config_across_processes
from patchwords.train.job import choose_output_folder
from patchwords.train.journal import read_metrics
from patchwords.train.progress import Display
from patchwords.train.run_folder import (
    RunFolder,
    check_output_overlap,
    check_run_folder_available,
    write_json,
)


@dataclass(frozen=True)
class SweepTrial:
    """One learning rate, and what became of it on the dev split."""

    lr: float
    folder: str  # in that of the sweep
    accuracy: float | None  # None: training diverged
    loss: float | None
    images: int  # of the dev split that could be read
    why: str | None = None  # it has no accuracy

    @property
    def interval(self) -> tuple[float, float]:
        """95 % (Wilson) of the accuracy."""
        assert self.accuracy is not None
        found = proportion_with_interval(round(self.accuracy * self.images), self.images)
        return found["low"], found["high"]


@dataclass(frozen=True)
class FinalRun:
    """A run with the chosen rate, on all training images, and its evaluation by the test images."""

    seed: int
    folder: str
    evaluation: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return float(self.evaluation["accuracy"]["value"])


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found, and where it lies."""

    folder: Path
    cells: list[SweepTrial]  # by rising rate
    chosen: SweepTrial
    remarks: list[str]  # on the choice, for a person
    finals: list[FinalRun]

    @property
    def spread(self) -> SeedStatistics:
        """Of the test accuracy over the seeds."""
        return compute_seed_statistics([final.accuracy for final in self.finals])


def sweep_learning_rates(
    config: SweepConfig, display: Display, report: ReportWriter | None = None
) -> SweepResult:
    """Train the grid, choose, train the final runs and judge them by the test images.

    Under torchrun every process calls it, and all train every run together. The folder gets
    sweep.json, lr-RATE/ for each rate, and final/ (of several seeds final/seed-N/): run folders.
    Raises ConfigError and DataError before anything is written, Diverged where every rate did,
    Interrupted with the command to go on.
    """
    with share_config_across_processes(config) as asked:
        asked.check()
        run_on_main_process(lambda: check_sweep_output(asked))
        config, data, choices = run_on_all_processes(lambda: plan_sweep(asked))
        output = broadcast_from_main(
            Path(config.output or choose_output_folder(config.data, "sweep"))
        )
        check_output_overlap(
            output, Path(config.data), Path(config.weights) if config.weights else None
        )
        about = {"source": data.source, "kind": data.kind, "fingerprint": fingerprint_dataset(data)}
        folder = open_series(config, asked, output, about)
        display.choices("sweep", choices)
        display.say(describe_data_splits(data))
        with add_resume_hint(config, output):
            cells = train_sweep_grid(config, folder, display)
            chosen, remarks = choose_best_trial(cells)
            for remark in remarks:
                display.say(remark)
            finals = train_final_runs(config, chosen.lr, folder, display, report)
    return SweepResult(output, cells, chosen, remarks, finals)


def check_sweep_output(config: SweepConfig) -> None:
    """Raise ConfigError before the data are opened, which may take a while."""
    if config.output is not None:
        folder = RunFolder(Path(config.output))
        check_run_folder_available(folder, resume=config.resume, overwrite=config.overwrite)


def describe_data_splits(data: DatasetSplits) -> str:
    """How the runs divide the images, for a person."""
    parts = ", ".join(f"{len(examples):,} {name}" for name, examples in data.splits.items())
    return f"{data.source}: {len(data.classes)} classes; {parts} images at first"


def train_sweep_grid(config: SweepConfig, folder: RunFolder, display: Display) -> list[SweepTrial]:
    """Every rate that sweep.json does not have yet; -> all of them."""
    assert config.grid.lrs is not None
    record = folder.path / "sweep.json"
    done = {
        cell.lr: cell
        for cell in broadcast_from_main(read_sweep_trials(record) if config.resume else [])
    }
    for number, lr in enumerate(config.grid.lrs, start=1):
        if lr in done:
            continue
        display.say(f"rate {number} of {len(config.grid.lrs)}: {lr:g}")
        done[lr] = train_sweep_trial(config, lr, folder, display)
        display.say(format_sweep_trial(done[lr]))
        cells = [asdict(done[rate]) for rate in config.grid.lrs if rate in done]
        run_on_main_process(lambda cells=cells: write_json(record, {"cells": cells}))  # type: ignore[misc]
    return [done[lr] for lr in config.grid.lrs]


def read_sweep_trials(record: Path) -> list[SweepTrial]:
    """What sweep.json has, if it was written yet."""
    if not record.is_file():
        return []
    return [SweepTrial(**cell) for cell in json.loads(record.read_text(encoding="utf-8"))["cells"]]


def train_sweep_trial(
    config: SweepConfig, lr: float, folder: RunFolder, display: Display
) -> SweepTrial:
    """One rate on its dev split, by the weights that the run ends with."""
    name = f"lr-{lr:g}"
    try:
        job = train_or_resume(build_sweep_trial_config(config, lr, folder.path / name), display)
    except Diverged as error:
        return SweepTrial(lr, name, None, None, 0, str(error))
    row = broadcast_from_main(read_last_evaluation(job.folder))
    if row is None:
        raise DataError(f"{job.folder.metrics} has no evaluation of the last step; start anew")
    return SweepTrial(lr, name, row["accuracy"], row["loss"], row["images"])


def read_last_evaluation(folder: RunFolder) -> dict[str, Any] | None:
    """The row of metrics.jsonl that the last step ended with."""
    rows = [row for row in read_metrics(folder.metrics) if row["kind"] == "evaluation"]
    return rows[-1] if rows and rows[-1]["split"] == VALIDATION else None


def format_sweep_trial(cell: SweepTrial) -> str:
    if cell.accuracy is None:
        return f"learning rate {cell.lr:g} is lost: {cell.why}"
    low, high = cell.interval
    return (
        f"learning rate {cell.lr:g}: {cell.accuracy:.1%} of {cell.images:,} dev images "
        f"(95 % interval {low:.1%} to {high:.1%})"
    )


def choose_best_trial(cells: Sequence[SweepTrial]) -> tuple[SweepTrial, list[str]]:
    """The most accurate rate, of equal ones the smallest; and what a person should know of that.

    Raises Diverged where no rate has an accuracy.
    """
    alive = [cell for cell in cells if cell.accuracy is not None]
    if not alive:
        tried = " ".join(f"{cell.lr:g}" for cell in cells)
        raise Diverged(
            f"training diverged at every learning rate ({tried}); try lower ones by --lrs, more "
            "--warmup-steps, or --precision fp32, in another --output"
        )
    best = max(cell.accuracy for cell in alive if cell.accuracy is not None)
    equal = sorted((cell for cell in alive if cell.accuracy == best), key=lambda cell: cell.lr)
    chosen = equal[0]
    remarks = [f"learning rate {chosen.lr:g} is chosen, by {best:.1%} of the dev images"]
    if len(equal) > 1:
        tied = ", ".join(f"{cell.lr:g}" for cell in equal)
        remarks.append(f"{tied} are equally good on the dev images: the smallest is taken")
    rates = sorted(cell.lr for cell in cells)
    if len(equal) == 1 and chosen.lr in (rates[0], rates[-1]):
        side = "lower" if chosen.lr == rates[0] else "higher"
        remarks.append(f"it is at the end of the grid: {side} rates may be better still")
    return chosen, remarks


def train_final_runs(
    config: SweepConfig, lr: float, folder: RunFolder, display: Display, report: ReportWriter | None
) -> list[FinalRun]:
    """The runs on all training images; only they read the test images."""
    finals = []
    for seed in range(config.seed, config.seed + config.grid.seeds):
        name = "final" if config.grid.seeds == 1 else f"final/seed-{seed}"
        run = RunFolder(folder.path / name)
        if not is_run_finished(run, report):
            display.say(f"final run with learning rate {lr:g}, seed {seed}")
            evaluate_and_report(
                train_or_resume(build_sweep_final_config(config, lr, seed, run.path), display),
                report,
            )
        finals.append(FinalRun(seed, name, broadcast_from_main(read_evaluation(run))))
    return finals
