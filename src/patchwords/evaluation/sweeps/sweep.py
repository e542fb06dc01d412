"""Learning-rate sweeps by the paper's protocol (Table 4, Appendix B.1.1).

Each rate of a grid is trained without a dev split, and evaluated on it. The best rate is then
trained on all training images, and this final run reads the test images, once. An interrupted sweep
resumes: finished rates are kept, and the interrupted run continues from its checkpoint, exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from patchwords.data.dataset import TEST, TRAIN, VALIDATION, DatasetSplits
from patchwords.data.splits import fingerprint_dataset
from patchwords.distributed import broadcast_from_main, run_on_all_processes, run_on_main_process
from patchwords.errors import ConfigError, DataError, Diverged
from patchwords.evaluation.metrics import proportion_with_interval
from patchwords.evaluation.statistics import SeedStatistics, compute_seed_statistics
from patchwords.evaluation.sweeps.config import SweepConfig
from patchwords.evaluation.sweeps.series import (
    ReportWriter,
    add_resume_hint,
    build_run_config,
    evaluate_and_report,
    is_run_finished,
    open_series,
    read_evaluation,
    train_or_resume,
)
from patchwords.training.config import FinetuneConfig
from patchwords.training.data_setup import load_dataset_splits
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.logs.run_folder import (
    RunFolder,
    check_output_overlap,
    check_run_folder_available,
    write_json,
)
from patchwords.training.logs.run_record import choose_output_folder
from patchwords.training.model_setup import (
    choose_model_family,
    choose_model_name,
    load_starting_weights,
)
from patchwords.training.plan import ResolvedSetting
from patchwords.training.recipes import fill_recipe_settings, find_recipe
from patchwords.training.settings import share_config_across_processes

# The plan of a sweep: Table 4's grid and dev split, and the runs.
#
# Table 4 and Appendix B.1.1 have three protocols: for Pets and Flowers, for CIFAR, for ImageNet.
# Other data take the first of these that is at least as large, with the size limits of the
# fine-tuning recipes.


# (largest training set, share of the dev split, recipe with the grid)
TABLE_4_PROTOCOLS = (
    (20_000, 0.10, "paper-finetune-pets"),
    (500_000, 0.02, "paper-finetune-cifar10"),
    (math.inf, 0.01, "paper-finetune-imagenet"),
)
TABLE_4_BASE_LR = 0.01  # base rate of the recipe for any data; it is in every grid


def plan_sweep(config: SweepConfig) -> tuple[SweepConfig, DatasetSplits, list[ResolvedSetting]]:
    """Resolve the settings that all runs share; return config, data and reasons.

    Settings that are given stay, so that a resumed sweep decides nothing again. Raises ConfigError
    and DataError if the protocol cannot be followed.
    """
    data = load_dataset_splits(config)
    require_sweep_splits(data)
    images = len(data.splits[TRAIN]) + len(data.splits[VALIDATION])
    dev, why_dev = choose_dev_share(config, images)
    recipe = config.recipe
    if config.grid.lrs is not None:  # learning rates are specific to an optimizer
        recipe = replace(recipe, lr=config.grid.lrs[0])
    origin = load_starting_weights(config)
    filled, _ = fill_recipe_settings(
        replace(build_run_config(config, Path()), recipe=recipe),
        images=images,
        from_weights=origin is not None,
        model=choose_model_name(config, origin),
        family=choose_model_family(config, origin),
    )
    assert filled.recipe.lr is not None
    lrs, why_lrs = choose_sweep_rates(config, images, filled.recipe.lr)
    same = {name: getattr(filled.recipe, name) for name in ("steps", "batch_size", "warmup_steps")}
    choices = [
        ResolvedSetting("lrs", lrs, why_lrs),
        ResolvedSetting("dev", dev, why_dev),
        *(ResolvedSetting(name, value, "the same in all runs") for name, value in same.items()),
        ResolvedSetting(
            "final runs", config.grid.seeds, "on all training images, with the best rate"
        ),
    ]
    settings = config.data_settings
    if settings.split_seed is None:  # final runs have other seeds, but the same test images
        settings = replace(settings, split_seed=config.seed)
    decided = replace(
        config,
        grid=replace(config.grid, lrs=lrs, dev=dev),
        recipe=replace(config.recipe, epochs=None, examples=None, **same),
        data_settings=settings,
    )
    return decided, data, choices


def require_sweep_splits(data: DatasetSplits) -> None:
    """Raise DataError if the images that choose the rate would also test it."""
    if not len(data.splits.get(TEST, ())):
        raise DataError(
            f"{data.source}: a sweep needs test images, as those that chose the learning rate "
            f"would flatter it; there are {', '.join(data.splits)}: add a test split, or raise "
            "--test where DATA is not divided"
        )
    if not len(data.splits.get(VALIDATION, ())):
        raise DataError(
            f"{data.source}: no image can be spared to choose the learning rate by; add images"
        )


def choose_dev_share(config: SweepConfig, images: int) -> tuple[float, str]:
    """Choose the share of training images for the dev split, with the reason."""
    if config.grid.dev is not None:
        return config.grid.dev, "asked for, where DATA has no validation split of its own"
    for_images, whose = images, f"{images:,} training images"
    if config.recipe.recipe is not None and config.recipe.scale is None:
        row = find_recipe(config.recipe.recipe)
        for_images, whose = row.data.images, row.data.name
    _, share, _ = find_protocol(for_images)
    return share, f"Appendix B.1.1, for {whose}; where DATA has no validation split of its own"


def find_protocol(images: int) -> tuple[float, float, str]:
    """Find the row of PROTOCOLS for a training set of this size."""
    return next(row for row in TABLE_4_PROTOCOLS if images <= row[0])


def choose_sweep_rates(
    config: SweepConfig, images: int, lr: float
) -> tuple[tuple[float, ...], str]:
    """Choose the learning rates, rising, with the reason; `lr` is that of a single run.

    If the recipe scales its learning rate for a smaller batch, the grid scales with it.
    """
    if config.grid.lrs is not None:
        return tuple(sorted(config.grid.lrs)), "asked for"
    name = config.recipe.recipe
    if name is None and config.weights is None:
        raise ConfigError(
            "the grid of Table 4 is for fine-tuning: start from --weights, or say which learning "
            "rates to try by --lrs"
        )
    row = find_recipe(name or find_protocol(images)[2])
    if len(row.rates) < 2:
        raise ConfigError(
            f"--recipe {row.name} comes with one learning rate; say which to try by --lrs"
        )
    factor = lr / (row.lr if name is not None else TABLE_4_BASE_LR)
    rates = tuple(float(f"{rate * factor:.3g}") for rate in row.rates)
    grid = " ".join(f"{rate:g}" for rate in row.rates)
    scaled = "" if math.isclose(factor, 1) else f"; x{factor:.3g}, as the recipe does"
    return rates, f"{row.source}, {row.data.name}: {grid}{scaled}"


def build_sweep_trial_config(config: SweepConfig, lr: float, folder: Path) -> FinetuneConfig:
    """Build a run that is evaluated on the dev split and reads no test image."""
    assert config.grid.dev is not None
    run = build_run_config(config, folder)
    return replace(
        run,
        recipe=replace(run.recipe, lr=lr),
        data_settings=replace(run.data_settings, validation=config.grid.dev),
    )


def build_sweep_final_config(
    config: SweepConfig, lr: float, seed: int, folder: Path
) -> FinetuneConfig:
    """Build a run on all training images, including DATA's own validation images."""
    run = build_run_config(config, folder)
    return replace(
        run,
        seed=seed,
        recipe=replace(run.recipe, lr=lr),
        data_settings=replace(run.data_settings, validation=0.0, join_validation=True),
    )


@dataclass(frozen=True)
class SweepTrial:
    """One learning rate and its result on the dev split."""

    lr: float
    folder: str  # within the sweep's folder
    accuracy: float | None  # None: diverged
    loss: float | None
    images: int  # readable images of the dev split
    why: str | None = None  # reason for a missing accuracy

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the accuracy."""
        assert self.accuracy is not None
        found = proportion_with_interval(round(self.accuracy * self.images), self.images)
        return found["low"], found["high"]


@dataclass(frozen=True)
class FinalRun:
    """A run with the chosen rate on all training images, and its test evaluation."""

    seed: int
    folder: str
    evaluation: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return float(self.evaluation["accuracy"]["value"])


@dataclass(frozen=True)
class SweepResult:
    """Results of a sweep, and its folder."""

    folder: Path
    cells: list[SweepTrial]  # by rising rate
    chosen: SweepTrial
    remarks: list[str]  # on the choice, human-readable
    finals: list[FinalRun]

    @property
    def spread(self) -> SeedStatistics:
        """Statistics of the test accuracy over seeds."""
        return compute_seed_statistics([final.accuracy for final in self.finals])


def sweep_learning_rates(
    config: SweepConfig, display: Display, report: ReportWriter | None = None
) -> SweepResult:
    """Train the grid, choose a rate, train the final runs and evaluate them on test.

    Under torchrun every process calls it, and all train every run together. The folder gets
    sweep.json, lr-RATE/ for each rate, and final/ (with several seeds final/seed-N/): run folders.
    Raises ConfigError and DataError before anything is written, Diverged if every rate did,
    Interrupted with the command to resume.
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
    """Raise ConfigError before opening the data, which may take a while."""
    if config.output is not None:
        folder = RunFolder(Path(config.output))
        check_run_folder_available(folder, resume=config.resume, overwrite=config.overwrite)


def describe_data_splits(data: DatasetSplits) -> str:
    """Describe the splits of the runs."""
    parts = ", ".join(f"{len(examples):,} {name}" for name, examples in data.splits.items())
    return f"{data.source}: {len(data.classes)} classes; {parts} images at first"


def train_sweep_grid(config: SweepConfig, folder: RunFolder, display: Display) -> list[SweepTrial]:
    """Train every rate that sweep.json does not have yet; return all trials."""
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
    """Read the trials of sweep.json, if it exists."""
    if not record.is_file():
        return []
    return [SweepTrial(**cell) for cell in json.loads(record.read_text(encoding="utf-8"))["cells"]]


def train_sweep_trial(
    config: SweepConfig, lr: float, folder: RunFolder, display: Display
) -> SweepTrial:
    """Train one rate, and evaluate its final weights on the dev split."""
    name = f"lr-{lr:g}"
    try:
        job = train_or_resume(build_sweep_trial_config(config, lr, folder.path / name), display)
    except Diverged as error:
        return SweepTrial(lr, name, None, None, 0, str(error))
    row = broadcast_from_main(read_last_evaluation(job.folder))
    if row is None:
        raise DataError(f"{job.folder.metrics} has no evaluation of the last step; start again")
    return SweepTrial(lr, name, row["accuracy"], row["loss"], row["images"])


def read_last_evaluation(folder: RunFolder) -> dict[str, Any] | None:
    """Read the last evaluation of metrics.jsonl."""
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
    """Choose the most accurate rate, the smallest on ties; with remarks for the user.

    Raises Diverged if no rate has an accuracy.
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
    """Train on all training images; only these runs read the test images."""
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
