"""A real run, made small: 97 digits, a ViT of 5,606 numbers, every random part of training on."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from torch import nn

from patchwords.data.augment import AugmentSettings
from patchwords.data.dataset import TRAIN, VALIDATION, DatasetSplits
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import split_dataset
from patchwords.evaluation.probes.fewshot import measure_fewshot
from patchwords.models.build import ModelConfig, build_model, get_model_family
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.training import run
from patchwords.training.config import FinetuneConfig, MachineSettings, RecipeSettings
from patchwords.training.logs.display import Display
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import HeldOutExamples, Objective
from patchwords.training.training_run import TrainingRun

VIT = ViTConfig(
    patch_size=4,
    width=14,
    depth=3,
    heads=2,
    mlp_width=22,
    image_size=(8, 8),
    num_classes=10,
    dropout=0.1,
    drop_path=0.2,
)
EVERYTHING_RANDOM = AugmentSettings(randaugment=(2, 9.0), mixup=0.2, color_jitter=0.2, erase=0.3)


@functools.cache
def digits() -> DatasetSplits:
    """Few enough that 24 steps see more than one epoch; the classes are not balanced."""
    data = split_dataset(open_data("digits"), seed=0)
    splits = {TRAIN: data.splits[TRAIN].select(range(97))}
    splits[VALIDATION] = data.splits[VALIDATION].select(range(23))
    return replace(data, splits=splits)


def quiet() -> Display:
    return Display(Console(file=io.StringIO()))


def config_of(workers: int = 0, augment: AugmentSettings = EVERYTHING_RANDOM) -> FinetuneConfig:
    return FinetuneConfig(
        data="digits",
        model="ViT-B/16",  # whose recipe it takes
        seed=3,
        augment=augment,
        recipe=RecipeSettings(steps=24, batch_size=11, lr=0.01, ema=0.9, balance="sample"),
        machine=MachineSettings(
            device="cpu",
            precision="fp32",
            workers=workers,
            grad_accum=2,
            log_every=1,
            eval_every=8,
            save_every=5,
        ),
    )


def assemble(
    folder: Path, config: FinetuneConfig, shape: ModelConfig = VIT, resume: bool = False
) -> TrainingRun:
    """A run made ready, with fewer images and a smaller model than the command line can name."""
    model = build_model(shape)
    init_weights(model, config.seed)
    preprocess = Preprocess(image_size=shape.image_size, crop_fraction=1.0)
    start = InitialModel("tiny", model, preprocess, ())
    config = replace(config, output=str(folder), resume=resume)
    with (
        mock.patch.object(run, "load_dataset_splits", return_value=digits()),
        mock.patch.object(run, "build_initial_model", return_value=(start, [])),
        mock.patch.object(run, "choose_model_family", return_value=get_model_family(shape)),
    ):
        return run.prepare_training_run(config, quiet())


Evaluate = Callable[[Objective, nn.Module, HeldOutExamples], dict[str, Any]]


def go(job: TrainingRun, evaluate: Evaluate | None = None) -> TrainingRun:
    """Train to the end; `evaluate` takes the place of the objective's method."""
    if evaluate is not None:
        vars(job.objective)["evaluate"] = partial(evaluate, job.objective)
    run.train_to_end(job, quiet(), measure_fewshot)
    return job


class Killed(Exception):
    pass


def killed_at(evaluation: int) -> Evaluate:
    """An evaluation that breaks off the run in its n-th call; steps after the last save are lost."""
    calls = []

    def evaluate(objective: Objective, *args: Any) -> dict[str, Any]:
        calls.append(args)
        if len(calls) == evaluation:
            raise Killed
        return type(objective).evaluate(objective, *args)

    return evaluate


def go_on(
    folder: Path, config: FinetuneConfig, shape: ModelConfig = VIT, evaluate: Evaluate | None = None
) -> TrainingRun:
    """Continue from the newest checkpoint, as another process would."""
    return go(assemble(folder, config, shape, resume=True), evaluate)
