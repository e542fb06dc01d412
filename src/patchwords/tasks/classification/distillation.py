"""Distillation: learn what another model says of the same images.

- Soft, the default: the divergence of the student's probabilities from the teacher's, KL(teacher ||
  student), both at a temperature. By itself, without the labels, it is "patient and consistent"
  distillation (arXiv 2106.05237): the same crop and the same mixing for both, and long training.
- Hard: cross-entropy of the teacher's most likely class (DeiT, arXiv 2012.12877). DeiT reads it
  from a second token; here it is read from the one head that the model has.

The teacher keeps its own preprocessing: it gets the pixels of the student's view, resized to its
own image size and normalised by its own mean and deviation. It is loaded from its source at every
start, and no checkpoint holds it. Sizes: B images, C channels, H W image, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.batch_augment import mix_images
from patchwords.data.dataset import DatasetSplits
from patchwords.data.loader import IMAGE, ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.models.build import Model
from patchwords.tasks.classification import Classification
from patchwords.training.config import FinetuneConfig
from patchwords.training.model_setup import InitialModel, map_head_rows
from patchwords.training.objectives import Objective
from patchwords.training.plan import ResolvedSetting, require_setting
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained


@dataclass(frozen=True)
class Teacher:
    """A trained model that is asked and does not learn."""

    model: Model
    preprocess: Preprocess
    columns: list[int]  # of its logits, in the order of the student's classes

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Compute logits, float32 [B, K], of the student's images, uint8 [B, C, H, W]."""
        size = self.preprocess.image_size
        if tuple(images.shape[-2:]) != size:
            images = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
        logits: Tensor = self.model(self.preprocess.normalise(images))
        return logits.float()[:, self.columns]


def load_teacher(config: FinetuneConfig) -> Pretrained:
    """Load the model of --teacher; raises ConfigError for one that knows no classes."""
    source = require_setting(config.recipe.teacher)
    teacher = from_pretrained(source)
    if not teacher.labels:
        raise ConfigError(
            f"--teacher {source} was pre-trained without classes, so it has none to teach; "
            "fine-tune it first"
        )
    return teacher


def build_teacher(
    config: FinetuneConfig, classes: Sequence[str], backbone: InitialModel
) -> Teacher:
    """Build the teacher of these classes on the device of the model that learns."""
    teacher, source = load_teacher(config), config.recipe.teacher
    columns = match_teacher_classes(teacher.labels, tuple(classes), f"--teacher {source}")
    ours, theirs = backbone.preprocess.channels, teacher.preprocess.channels
    if ours != theirs:
        raise ConfigError(
            f"--teacher {source} takes images of {theirs} channels, and the model that learns "
            f"{ours}: choose a teacher of {ours}"
        )
    device = next(backbone.model.parameters()).device
    model = teacher.model.to(device).eval().requires_grad_(False)
    return Teacher(model, teacher.preprocess, columns)


def match_teacher_classes(
    labels: tuple[str, ...], classes: tuple[str, ...], what: str
) -> list[int]:
    """Find the teacher's logits of the student's classes, by name; it may know more classes.

    Raises ConfigError for a class that it does not know.
    """
    rows, _ = map_head_rows(labels, classes)
    if rows is not None:
        return rows
    unknown = [name for name in classes if name not in labels]
    if unknown:
        some = ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "")
        raise ConfigError(
            f"{what} does not know {len(unknown)} of {len(classes)} classes of the data, such as "
            f"{unknown[0]!r}; its own are {some}: fine-tune it on these data first"
        )
    return [labels.index(name) for name in classes]


def distillation_loss(
    logits: Tensor, taught: Tensor, *, hard: bool = False, temperature: float = 1.0
) -> Tensor:
    """Compute the loss of each image, [B], of the student's and the teacher's logits [B, K].

    Soft: T^2 KL(teacher || student) of probabilities at temperature T, summed over the classes
    (DeiT's code divides by their number, too). Hard: cross-entropy of the teacher's class.
    """
    logits = logits.float()
    if hard:
        return F.cross_entropy(logits, taught.argmax(-1), reduction="none")
    student = (logits / temperature).log_softmax(-1)
    teacher = (taught / temperature).log_softmax(-1)
    divergences = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    return temperature**2 * divergences


def describe_teacher(config: FinetuneConfig, weight: float) -> list[ResolvedSetting]:
    """List the settings of the teacher, with what follows from them."""
    recipe = config.recipe
    kind = "most likely class" if recipe.distillation == "hard" else "probabilities"
    weight_why = (
        "the teacher alone: labels, their smoothing and their weights take no part in the loss"
        if weight == 1
        else "share of the loss; the rest is that of the labels"
    )
    choices = [
        ResolvedSetting("teacher", recipe.teacher, "sees the same images, in its own size"),
        ResolvedSetting("distillation", recipe.distillation, f"its {kind}, by the classifier"),
        ResolvedSetting("teacher_weight", weight, weight_why),
    ]
    if recipe.distillation == "soft":
        choices.append(ResolvedSetting("temperature", recipe.temperature, "of both models"))
    return choices


class Distillation(Classification):
    """Distillation with labels at hand: the teacher's loss, and a share of the labels' own."""

    caches_frozen = False  # the teacher needs the images
    costs_as_model = False
    formats: ClassVar[Mapping[str, str]] = {"accuracy": ".1%", "agreement": ".1%"}

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        recipe = config.recipe
        weight = 1.0 if recipe.teacher_weight is None else recipe.teacher_weight
        config = replace(config, recipe=replace(recipe, teacher_weight=weight))
        return config, describe_teacher(config, weight)

    def build(self, backbone: InitialModel, data: DatasetSplits) -> nn.Module:
        self.teacher = build_teacher(self.config, data.classes, backbone)
        return super().build(backbone, data)

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss; metrics: accuracy, and agreement with the teacher."""
        recipe, taught = self.config.recipe, self.teacher.logits(batch.images)
        logits = self.forward(learner, batch)
        loss, metrics = self.label_loss(logits, batch)
        distilled = distillation_loss(
            logits,
            taught,
            hard=recipe.distillation == "hard",
            temperature=recipe.temperature,
        ).mean()
        weight = require_setting(recipe.teacher_weight)
        metrics["agreement"] = measure_agreement(logits, taught)
        return weight * distilled + (1 - weight) * loss, metrics


class UnlabelledDistillation(Objective):
    """Distillation without labels: the student gets the teacher's classes, and what it says."""

    primary_metric, higher_is_better = "agreement", True
    formats: ClassVar[Mapping[str, str]] = {"agreement": ".1%"}
    costs_as_model = False

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        why = "the classes of the teacher; labels are not read"
        return config, [ResolvedSetting("objective", "distill", why), *describe_teacher(config, 1)]

    @classmethod
    def head_classes(cls, config: FinetuneConfig, data: DatasetSplits) -> tuple[str, ...]:
        return load_teacher(config).labels

    def build(self, backbone: InitialModel, data: DatasetSplits) -> nn.Module:
        self.names = self.head_classes(self.config, data)
        self.teacher = build_teacher(self.config, self.names, backbone)
        return backbone.model

    def labels(self, data: DatasetSplits) -> tuple[str, ...]:
        return self.names

    def prepare(self, batch: ImageBatch, step: int) -> ImageBatch:
        """Apply MixUp and CutMix to the images; nothing else is mixed."""
        nothing = torch.zeros(len(batch), dtype=torch.int64, device=batch.images.device)
        images, _ = mix_images(
            batch.images, nothing, self.config.augment, self.config.seed, 1, step
        )
        return replace(batch, views={IMAGE: images})

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss, and agreement with the teacher."""
        recipe, taught = self.config.recipe, self.teacher.logits(batch.images)
        logits: Tensor = learner(self.preprocess.normalise(batch.images))
        hard = recipe.distillation == "hard"
        losses = distillation_loss(logits, taught, hard=hard, temperature=recipe.temperature)
        return losses.mean(), {"agreement": measure_agreement(logits, taught)}


def measure_agreement(logits: Tensor, taught: Tensor) -> Tensor:
    """Measure the share of images for which both models name the same class, []."""
    return (logits.detach().argmax(-1) == taught.argmax(-1)).float().mean()
