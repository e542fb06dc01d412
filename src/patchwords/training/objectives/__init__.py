"""Training objectives: what a run learns by, and how to find one by its name.

An objective is one file: a class derived from `Objective`, and a row in `OBJECTIVES` or `TASKS`,
or, from outside the package, `package.module:Name` in place of the row's name.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.batch_augment import augment_images
from patchwords.data.dataset import DatasetSplits, ImageDataset
from patchwords.data.loader import (
    IMAGE,
    EvalTransform,
    ImageBatch,
    Transforms,
    iterate_eval_keys,
    load_batches,
)
from patchwords.data.preprocess import Preprocess
from patchwords.data.sources.masks import is_mask_folder
from patchwords.device import Device
from patchwords.distributed import all_gather_objects, get_world, run_on_all_processes
from patchwords.errors import ConfigError, DataError, did_you_mean
from patchwords.training.config import FinetuneConfig, PretrainConfig
from patchwords.training.model_setup import InitialModel, choose_plain_settings
from patchwords.training.plan import ResolvedSetting
from patchwords.weights.pretrained import Pretrained

TASKS = {  # --task of `patchwords finetune`
    "classification": "patchwords.tasks.classification:Classification",
    "segmentation": "patchwords.tasks.segmentation:Segmentation",
}
OBJECTIVES = {  # --objective of `patchwords pretrain`
    "supervised": "patchwords.tasks.classification.pretraining:SupervisedPretraining",
    "masked": "patchwords.training.objectives.masked:MaskedPatchPrediction",
    "mae": "patchwords.training.objectives.mae:MaskedAutoencoding",
    "distill": "patchwords.tasks.classification.distillation:UnlabelledDistillation",
}
DISTILLATION = "patchwords.tasks.classification.distillation:Distillation"  # --teacher of finetune
EVAL_BATCH_SIZE = 64


@dataclass(frozen=True)
class Views:
    """Views of one sample: one or several crops, each of its own size, and its target."""

    train: Transforms
    evaluate: Transforms
    train_targets: Transforms = field(default_factory=dict)  # none: the class index
    eval_targets: Transforms = field(default_factory=dict)


class Objective(ABC):
    """Objective of a training run: targets, loss, metrics and evaluation.

    An object of it belongs to one run, and `build` is called before all other methods. What
    training changes belongs into the learner, whose weights and buffers a checkpoint holds.
    """

    needs_labels: ClassVar[bool] = False  # refuse data without class names
    splittable: ClassVar[bool] = True  # the loss of a batch is the mean of those of its samples
    primary_metric: ClassVar[str] = "loss"  # of `evaluate`: what early stopping reads
    higher_is_better: ClassVar[bool] = False  # of the primary metric
    formats: ClassVar[Mapping[str, str]] = {}  # metric -> how to print it; default: .3g
    caches_frozen: ClassVar[bool] = False  # batches may hold cached activations of frozen layers
    # name of a parameter around the backbone -> whether weight decay falls on it, as in optimizer.py
    weight_decay_rules: ClassVar[Mapping[str, bool]] = {}
    default_recipe: ClassVar[str] = "supervised"  # or a row of OBJECTIVE_RECIPES in defaults.py
    adam_betas: ClassVar[tuple[float, float]] = (0.9, 0.999)
    costs_as_model: ClassVar[bool] = True  # a training image takes one pass of the whole model

    def __init__(self, config: FinetuneConfig, preprocess: Preprocess) -> None:
        """Take a config with every setting resolved, and the preprocessing of the model."""
        self.config, self.preprocess = config, preprocess

    @classmethod
    def choose_settings(
        cls, config: FinetuneConfig, data: DatasetSplits, device: Device
    ) -> tuple[list[FinetuneConfig], list[ResolvedSetting]]:
        """Choose what the data decide; -> the settings, cheaper ones for a short budget, and why."""
        refuse_mask_settings(config)
        return choose_plain_settings(config, data, device)

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        """Resolve settings that the recipe leaves open; return the config and the reasons."""
        if config.augment.mixes:
            raise ConfigError(f"--mixup and --cutmix mix class labels, and {cls.__name__} has none")
        return config, []

    @classmethod
    def classes(cls, data: DatasetSplits) -> tuple[str, ...]:
        """List the classes of the model's own head; empty if that head is not trained."""
        return ()

    @classmethod
    def head_classes(cls, config: FinetuneConfig, data: DatasetSplits) -> tuple[str, ...]:
        """List the classes of a run's own head; default: `classes`, by the data alone."""
        return cls.classes(data)

    def labels(self, data: DatasetSplits) -> tuple[str, ...]:
        """List the class names that the trained model is saved with."""
        return self.head_classes(self.config, data)

    def describe_task(self) -> dict[str, Any] | None:
        """Describe what the learner answers, for config.json; None: the model's own classes."""
        return None

    def save_parts(self, learner: nn.Module, folder: Path) -> None:
        """Write what the learner has next to the backbone into the model folder."""
        return

    def is_better(self, value: float, best: float) -> bool:
        """Return whether a value of the primary metric is better than the best before."""
        return value > best if self.higher_is_better else value < best

    def sample_weights(self, train: ImageDataset) -> np.ndarray | None:
        """Return how often each training image is drawn, [n]; None: once in each epoch."""
        return None

    @abstractmethod
    def build(self, backbone: InitialModel, data: DatasetSplits) -> nn.Module:
        """Build the module that learns: the model with head, decoder or teacher."""

    def views(self) -> Views:
        """Return the views of a sample; default: one crop, and the class index as target."""
        crop = TrainTransform(self.preprocess, self.config.augment, self.config.seed)
        return Views({IMAGE: crop}, {IMAGE: EvalTransform(self.preprocess)})

    def prepare(self, batch: ImageBatch, step: int) -> ImageBatch:
        """Prepare a training batch on the device, before it is cut into micro-batches."""
        return batch

    def prepare_held_out(self, batch: ImageBatch) -> ImageBatch:
        """Prepare a batch of `evaluate` on the device, alike at every evaluation."""
        return batch

    @abstractmethod
    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean loss over the batch, and means of metrics by name.

        It is called for the same batch again if memory ran out.
        """

    def held_out_loss(
        self, learner: nn.Module, batch: ImageBatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the same as `loss` for a batch of held-out images."""
        return self.loss(learner, self.prepare_held_out(batch), step=0)

    def after_step(self, learner: nn.Module, step: int) -> None:
        """Update parts that learn without a gradient: teacher, centre, queue."""
        return

    def evaluate(self, learner: nn.Module, examples: HeldOutExamples) -> dict[str, Any]:
        """Average the loss and the metrics over held-out images; "images" is their number.

        Each of several processes measures its share.
        """
        learner.eval()
        parts = all_gather_objects(run_on_all_processes(lambda: self._measure(learner, examples)))
        rows = [row for part in parts for row in part]
        count = sum(images for images, _ in rows)
        if not count:
            raise DataError("none of the validation images can be read; patchwords doctor says why")
        names = rows[0][1]
        means = {name: sum(n * metrics[name] for n, metrics in rows) / count for name in names}
        return {**means, "images": count}

    @torch.inference_mode()
    def _measure(
        self, learner: nn.Module, examples: HeldOutExamples
    ) -> list[tuple[int, dict[str, float]]]:
        """Yield (images, metrics) of each batch of this process's share."""
        rows = []
        with examples.device.autocast():
            for batch in examples.batches():
                loss, metrics = self.held_out_loss(learner, batch)
                values = {"loss": loss, **metrics}
                rows.append((len(batch), {name: float(value) for name, value in values.items()}))
        return rows


@dataclass(frozen=True)
class HeldOutExamples:
    """Held-out images in the form that an objective evaluates."""

    dataset: ImageDataset
    views: Views
    device: Device
    workers: int = 0
    cached: Callable[[], Iterator[ImageBatch]] | None = None  # activations in place of images

    def batches(self) -> Iterator[ImageBatch]:
        """Iterate over this process's share on the device, without batches that cannot be read."""
        if self.cached is not None:
            yield from (batch.to(self.device.torch_device) for batch in self.cached())
            return
        world = get_world()
        share = self.dataset
        if world.size > 1:
            share = share.select(range(world.rank, len(share), world.size))
        plan = iterate_eval_keys(len(share), EVAL_BATCH_SIZE)
        views, targets = self.views.evaluate, self.views.eval_targets
        for batch in load_batches(share, views, plan, self.workers, targets=targets):
            if len(batch):
                places = batch.indices * world.size + world.rank  # among all images
                yield replace(batch, indices=places).to(self.device.torch_device)


def augment_views(batch: ImageBatch, views: Transforms, device: Device) -> ImageBatch:
    """Move a batch to the device and augment each view by its transform."""
    batch = batch.to(device.torch_device)
    augmented = dict(batch.views)
    for name, view in views.items():
        if isinstance(view, TrainTransform):
            images = augmented[name]
            augmented[name] = augment_images(
                images, batch.places, view.augment, view.seed, view.view
            )
    return replace(batch, views=augmented)


def find_objective(config: FinetuneConfig) -> type[Objective]:
    """Find the objective of a config: --objective in pre-training, else --teacher or --task."""
    check_teacher_settings(config)
    if isinstance(config, PretrainConfig):
        return load_objective(config.learn.objective, OBJECTIVES, "--objective")
    if config.recipe.teacher is not None:
        return load_objective(DISTILLATION, TASKS, "--teacher")
    return load_objective(choose_task(config), TASKS, "--task")


def choose_task(config: FinetuneConfig) -> str:
    """Choose --task by DATA, where it is auto."""
    if config.task != "auto":
        return config.task
    masks = config.verb == "finetune" and is_mask_folder(config.data)
    return "segmentation" if masks else "classification"


def refuse_mask_settings(config: FinetuneConfig) -> None:
    """Raise ConfigError for settings that only segmentation has a use for."""
    given = {
        "--decoder": config.decoder,
        "--scale-range": None
        if config.augment.scale_range == AugmentSettings.scale_range
        else " ".join(f"{scale:g}" for scale in config.augment.scale_range),
    }
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{flag} {value} has a meaning with --task segmentation only; leave it out"
            )


def check_teacher_settings(config: FinetuneConfig) -> None:
    """Raise ConfigError where a teacher and what is learned do not go together."""
    recipe, learn = config.recipe, getattr(config, "learn", None)
    teacher, weight = recipe.teacher, recipe.teacher_weight
    if learn is not None and learn.objective == "distill" and teacher is None:
        raise ConfigError(
            "--objective distill learns from a teacher: say which by --teacher SOURCE"
        )
    if teacher is None:
        given = {
            "--distillation": recipe.distillation != "soft",
            "--temperature": recipe.temperature != 1,
            "--teacher-weight": weight is not None,
        }
        for flag in (name for name, changed in given.items() if changed):
            raise ConfigError(f"{flag} is for learning from a --teacher; give one, or leave it out")
        return
    if learn is not None and learn.objective != "distill":
        raise ConfigError(
            f"--teacher {teacher} teaches with --objective distill, not with {learn.objective}"
        )
    if learn is not None and weight not in {None, 1.0}:
        raise ConfigError(f"--teacher-weight {weight:g}: --objective distill reads no labels")
    if learn is None and choose_task(config) != "classification":
        raise ConfigError(f"--teacher {teacher} teaches classes, and --task {config.task} has none")
    if weight is not None and not 0 < weight <= 1:
        raise ConfigError(f"--teacher-weight {weight:g} is not a share: above 0, and at most 1")
    if not 0 < recipe.temperature < math.inf:
        raise ConfigError(f"--temperature {recipe.temperature:g} must be above 0")
    if recipe.distillation == "hard" and recipe.temperature != 1:
        raise ConfigError(
            f"--temperature {recipe.temperature:g} softens probabilities, and --distillation hard "
            "takes the most likely class; leave one out"
        )


def load_objective(name: str, table: Mapping[str, str], flag: str) -> type[Objective]:
    """Load a class by its name in the table or by `package.module:Name`; raises ConfigError."""
    path = table.get(name, name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise ConfigError(
            f"unknown {flag} {name!r}: choose {', '.join(table)} or package.module:Name"
            f"{did_you_mean(name, table)}"
        )
    if os.getcwd() not in sys.path:  # as `python -m` has it
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there, and lacks a package of its own
        raise ConfigError(f"{flag} {name}: there is no module {error.name}") from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ConfigError(f"{flag} {name}: {module_name} has no objective {class_name}")
    return found
