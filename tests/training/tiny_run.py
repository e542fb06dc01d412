"""A real run, made small: 97 digits, a ViT of 5,606 numbers, every random part of training on."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from patchwords.data.augment import AugmentSettings
from patchwords.data.dataset import TRAIN, VALIDATION, DatasetSplits
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import split_dataset
from patchwords.device import choose_device
from patchwords.evaluation.held_out import evaluate_classifier
from patchwords.evaluation.probes.fewshot import measure_fewshot
from patchwords.models.build import ModelConfig, build_model, get_model_family
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.training.config import FinetuneConfig, MachineSettings, RecipeSettings
from patchwords.training.finetune import EvaluateFn, train_to_end
from patchwords.training.logs.display import Display
from patchwords.training.logs.run_folder import RunFolder
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import Aim
from patchwords.training.objectives.classification import Classify
from patchwords.training.plan import build_training_plan
from patchwords.training.recipes import fill_recipe_settings
from patchwords.training.run import TrainingRun, build_train_state, restore_latest_checkpoint

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
    folder: Path, config: FinetuneConfig, shape: ModelConfig = VIT, aim: Aim | None = None
) -> TrainingRun:
    """As `job.prepare` does, with a smaller model than any that has a name."""
    data, device = digits(), choose_device("cpu", "fp32")
    images = len(data.splits[TRAIN])
    family = get_model_family(shape)
    config, _ = fill_recipe_settings(
        config, images=images, from_weights=False, model="tiny", family=family
    )
    model = build_model(shape)
    init_weights(model, config.seed)
    start = InitialModel(
        "tiny", model, Preprocess(image_size=shape.image_size, crop_fraction=1.0), ()
    )
    plan = build_training_plan(config, images)
    folder.mkdir(exist_ok=True)
    aim = aim or Classify()
    config, _ = aim.settle(config, data, None)
    state = build_train_state(config, plan, start, device, aim)
    return TrainingRun(config, data, start, plan, device, RunFolder(folder), state, None, aim)


def go(job: TrainingRun, evaluate: EvaluateFn = evaluate_classifier) -> TrainingRun:
    train_to_end(job, evaluate, quiet(), measure_fewshot)
    return job


class Killed(Exception):
    pass


def killed_at(evaluation: int, measure: Callable[..., dict[str, Any]] = evaluate_classifier) -> Any:
    """An evaluator that breaks off the run in its n-th call; steps after the last save are lost."""
    calls = []

    def evaluate(*args: Any) -> dict[str, Any]:
        calls.append(args)
        if len(calls) == evaluation:
            raise Killed
        return measure(*args)

    return evaluate


def go_on(
    folder: Path,
    config: FinetuneConfig,
    shape: ModelConfig = VIT,
    aim: Aim | None = None,
    evaluate: EvaluateFn = evaluate_classifier,
) -> TrainingRun:
    """Everything anew, as another process would have it, from the newest checkpoint."""
    job = assemble(folder, config, shape, aim)
    step = restore_latest_checkpoint(
        job.state, job.start, job.folder, job.config, job.data, quiet()
    )
    return go(replace(job, resumed_at=step), evaluate)
