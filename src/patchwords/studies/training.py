"""Trials that train: started, resumed after an interruption, evaluated on test once.

A trial is measured on its own validation images, if it has any; only chosen trials are evaluated
on the test images, or by a few-shot classifier on another data set (Sec. 4.1).
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

FEWSHOT_DRAWS = (0, 1, 2)  # seeds of the drawn images; the mean counts


def build_training_config(trial: Trial, context: StudyContext) -> FinetuneConfig:
    """Build the run's settings; raise ConfigError for unknown ones."""
    blank = PretrainConfig() if trial.settings[VERB] == "pretrain" else FinetuneConfig()
    if "recipe" in trial.settings:
        blank = apply_recipe(blank, trial.settings["recipe"])
    place: dict[str, Any] = {
        "data": select_trial_data(trial, context),
        "output": str(context.run_folder(trial)),
        "seed": trial.seed,
        "device": context.device,
        "precision": context.precision,
    }
    if ENCODER in trial.settings:
        place["weights"] = str(context.encoder(trial))
    settings = {name: v for name, v in trial.settings.items() if name not in (ENCODER, VERB)}
    return unflatten_config(blank, {**settings, **place})


def select_trial_data(trial: Trial, context: StudyContext) -> str | None:
    """Return the data that a trial is trained on."""
    return context.transfer if context.scale.tuned and not trial.shared else context.data


def train_trial(trial: Trial, context: StudyContext) -> TrainingRun:
    """Train a trial to its end, resuming if it was started; output goes to log.txt."""
    config, folder = build_training_config(trial, context), RunFolder(context.run_folder(trial))
    if folder.path.exists() and not folder.config.is_file():
        shutil.rmtree(folder.path)  # killed before the run began
    with (context.trial_folder(trial) / "log.txt").open("a", encoding="utf-8") as log:
        display = Display(Console(file=log, width=100))
        return run.train_model(resume_if_started(config), display, measure_fewshot)


def train_and_measure(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Train; return cost and validation accuracy at the end and along the way.

    A training that diverges is a result, too: its accuracy is None.
    """
    try:
        job = train_trial(trial, context)
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
    """Count the FLOPs of a training that sees `seen` images.

    If only the head is trained, each multiplication of a forward pass counts 2 in place of 6, for
    every view that is computed; the cost of the head's own weights is neglected.
    """
    if parse_train_layers(config.recipe.train) != 0:
        return compute_training_flops(macs, seen)
    views = config.augment.views if config.machine.frozen != "compute" else None
    computed = seen if views is None else min(seen, views * images)
    return TRAINING_FLOPS_PER_MAC / 3 * macs * computed


def evaluate_on_test(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Evaluate the trained model of a trial on images that chose nothing."""
    if context.scale.shots is not None:
        return evaluate_by_fewshot(trial, context, context.scale.shots)
    job = train_trial(trial, context)  # finished: this loads it
    evaluate_and_report(job, None)
    evaluation = read_evaluation(job.folder)
    return {
        "accuracy": evaluation["accuracy"]["value"],
        "loss": evaluation["loss"],
        "test images": evaluation["images"],
    }


def evaluate_by_fewshot(trial: Trial, context: StudyContext, shots: int) -> TrialMetrics:
    """Measure few-shot linear accuracy on --transfer, the mean of three draws."""
    assert context.transfer is not None, "required before the first trial"
    device, cache = (
        choose_device(context.device, "fp32"),
        FeatureCache(context.shared_folder / "features"),
    )
    model = str(RunFolder(context.run_folder(trial)).model)
    with open_probe_inputs(model, context.transfer, device, cache) as inputs:
        drawn = draw_probe_shots(inputs.split, (shots,), FEWSHOT_DRAWS)
        frozen, draws = extract_drawn_features(
            inputs.extract, inputs.split, drawn, cached=inputs.train_is_cached
        )
    [row] = build_fewshot_table(frozen, draws)["table"]
    return {"accuracy": row["mean"], "test images": len(frozen.test.labels)}
