"""A cell that is a training: it runs, goes on where it was killed, and is judged once.

A cell is measured by its own validation images, if it has any; only what a study chooses is judged
by the test images, or by a few-shot classifier on another data set (Sec. 4.1).
"""

from __future__ import annotations

import shutil
from typing import Any

from rich.console import Console

from patchwords.data.dataset import VALIDATION
from patchwords.device import choose_device
from patchwords.errors import Diverged
from patchwords.evaluation.probes.cache import FeatureCache
from patchwords.evaluation.probes.fewshot import (
    build_fewshot_table,
    draw_probe_shots,
    extract_drawn_features,
    measure_fewshot,
)
from patchwords.evaluation.probes.inputs import open_probe_inputs
from patchwords.evaluation.sweeps.series import (
    evaluate_and_report,
    read_evaluation,
    resume_if_started,
)
from patchwords.models.cost import (
    TRAINING_FLOPS_PER_MAC,
    compute_training_flops,
    count_macs,
    count_parameters,
)
from patchwords.studies.study import ENCODER, VERB, StudyContext, Trial, TrialMetrics
from patchwords.training import run
from patchwords.training.config import (
    FinetuneConfig,
    PretrainConfig,
    parse_train_layers,
    unflatten_config,
)
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.logs.run_folder import RunFolder
from patchwords.training.recipes import apply_recipe
from patchwords.training.training_run import TrainingRun

FEWSHOT_DRAWS = (0, 1, 2)  # of a few images of each class; the mean counts


def build_training_config(cell: Trial, bench: StudyContext) -> FinetuneConfig:
    """The settings of the run. Raises ConfigError for one that training does not know."""
    blank = PretrainConfig() if cell.settings[VERB] == "pretrain" else FinetuneConfig()
    if "recipe" in cell.settings:
        blank = apply_recipe(blank, cell.settings["recipe"])
    place: dict[str, Any] = {
        "data": select_trial_data(cell, bench),
        "output": str(bench.run(cell)),
        "seed": cell.seed,
        "device": bench.device,
        "precision": bench.precision,
    }
    if ENCODER in cell.settings:
        place["weights"] = str(bench.encoder(cell))
    settings = {name: v for name, v in cell.settings.items() if name not in (ENCODER, VERB)}
    return unflatten_config(blank, {**settings, **place})


def select_trial_data(cell: Trial, bench: StudyContext) -> str | None:
    """What a training learns from."""
    return bench.transfer if bench.scale.tuned and not cell.shared else bench.data


def train_trial(cell: Trial, bench: StudyContext) -> TrainingRun:
    """The cell's run, from wherever it is to its end; what it says goes to log.txt."""
    config, folder = build_training_config(cell, bench), RunFolder(bench.run(cell))
    if folder.path.exists() and not folder.config.is_file():
        shutil.rmtree(folder.path)  # killed before it was a run
    with (bench.place(cell) / "log.txt").open("a", encoding="utf-8") as log:
        display = Display(Console(file=log, width=100))
        return run.train_model(resume_if_started(config), display, measure_fewshot)


def train_and_measure(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """Train; -> what it took, and the validation accuracy at the end and on the way.

    A training that diverges is a result, too: its accuracy is None.
    """
    try:
        job = train_trial(cell, bench)
    except Diverged:
        return {"validation": None, "diverged": 1.0}
    seen = job.plan.steps * job.plan.batch_size
    shape = job.start.model.config
    rows = [
        row
        for row in read_metrics(job.folder.metrics)
        if row["kind"] == "evaluation" and row["split"] == VALIDATION
    ]
    return {
        **({"validation": rows[-1]["accuracy"]} if rows else {}),
        **{f"validation at {row['step'] / job.plan.steps:.4g}": row["accuracy"] for row in rows},
        "steps": job.plan.steps,
        "images": seen,
        "parameters": count_parameters(shape),
        "flops": count_training_flops(job.config, count_macs(shape), seen, job.plan.images),
        "seconds": job.state.seconds,
    }


def count_training_flops(config: FinetuneConfig, macs: int, seen: int, images: int) -> float:
    """Of a training that sees so many of its images, each as often as it comes.

    Where the head alone learns, 2 for each multiplication of a forward pass in place of 6, of every
    view that is computed; the head's own weights cost nothing beside.
    """
    if parse_train_layers(config.recipe.train) != 0:
        return compute_training_flops(macs, seen)
    views = config.augment.views if config.machine.frozen != "compute" else None
    computed = seen if views is None else min(seen, views * images)
    return TRAINING_FLOPS_PER_MAC / 3 * macs * computed


def evaluate_on_test(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """The model that the cell ended with, by images that nothing was chosen by."""
    if bench.scale.shots is not None:
        return evaluate_by_fewshot(cell, bench, bench.scale.shots)
    job = train_trial(cell, bench)  # which is done, and loaded
    evaluate_and_report(job, None)
    evaluation = read_evaluation(job.folder)
    return {
        "accuracy": evaluation["accuracy"]["value"],
        "loss": evaluation["loss"],
        "test images": evaluation["images"],
    }


def evaluate_by_fewshot(cell: Trial, bench: StudyContext, shots: int) -> TrialMetrics:
    """Few-shot linear accuracy of the frozen model on --transfer, the mean of three draws."""
    assert bench.transfer is not None, "required before the first trial"
    device, cache = choose_device(bench.device, "fp32"), FeatureCache(bench.shared / "features")
    model = str(RunFolder(bench.run(cell)).model)
    with open_probe_inputs(model, bench.transfer, device, cache) as inputs:
        drawn = draw_probe_shots(inputs.split, (shots,), FEWSHOT_DRAWS)
        frozen, draws = extract_drawn_features(
            inputs.extract, inputs.split, drawn, cached=inputs.train_is_cached
        )
    [row] = build_fewshot_table(frozen, draws)["table"]
    return {"accuracy": row["mean"], "test images": len(frozen.test.labels)}
