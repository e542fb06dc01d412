"""Distillation: the losses by hand, the teacher's own view of the images, and matched classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.tasks.classification.distillation import (
    Distillation,
    Teacher,
    distillation_loss,
    match_teacher_classes,
)
from patchwords.tasks.classification.losses import classification_loss
from patchwords.training.config import FinetuneConfig, PretrainConfig, RecipeSettings
from patchwords.training.objective_settings import ObjectiveSettings
from patchwords.training.objectives import find_objective

IMAGES, CLASSES = 7, 4


def scores(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(IMAGES, CLASSES)) * 3


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_by_hand(temperature: float) -> None:
    student, teacher = scores(0), scores(1)
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    by_hand = temperature**2 * (p * np.log(p / q)).sum(1)  # [B]
    found = distillation_loss(*map(torch.from_numpy, (student, teacher)), temperature=temperature)
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-5, atol=1e-6)  # float32
    same = distillation_loss(*[torch.from_numpy(teacher)] * 2, temperature=temperature)
    assert same.abs().max() < 1e-6


def test_soft_distillation_is_deit_s_up_to_the_number_of_classes() -> None:
    """losses.py of DeiT: the sum over batch and classes, by the number of both, times T^2."""
    student, teacher = (torch.from_numpy(scores(seed)).float() for seed in (0, 1))
    official = F.kl_div(
        F.log_softmax(student / 3, 1),
        F.log_softmax(teacher / 3, 1),
        reduction="sum",
        log_target=True,
    )
    official = official * 9 / student.numel()
    found = distillation_loss(student, teacher, temperature=3.0).mean()
    torch.testing.assert_close(found, official * CLASSES)


def test_hard_distillation_by_hand() -> None:
    student, teacher = scores(0), scores(1)
    right = teacher.argmax(1)
    by_hand = -np.log(softmax(student)[np.arange(IMAGES), right])
    found = distillation_loss(*map(torch.from_numpy, (student, teacher)), hard=True)
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-5)


@pytest.mark.parametrize(("kind", "weight"), [("soft", 1.0), ("soft", 0.3), ("hard", 0.5)])
def test_the_loss_is_shared_between_teacher_and_labels(kind: Any, weight: float) -> None:
    recipe = RecipeSettings(teacher="x", distillation=kind, teacher_weight=weight)
    objective = Distillation(FinetuneConfig(recipe=recipe), Preprocess((2, 2)))
    objective.class_weights = None
    student, taught = (torch.from_numpy(scores(seed)).float() for seed in (0, 1))
    objective.teacher = Teacher(lambda images: taught, Preprocess((2, 2)), list(range(CLASSES)))  # type: ignore[arg-type]
    labels = torch.arange(IMAGES) % CLASSES
    batch = ImageBatch.of(torch.zeros(IMAGES, 3, 2, 2, dtype=torch.uint8), labels)
    loss, metrics = objective.loss(lambda images: student, batch, 0)  # type: ignore[arg-type]
    distilled = distillation_loss(student, taught, hard=kind == "hard").mean()
    expected = weight * distilled + (1 - weight) * classification_loss(student, labels).mean()
    torch.testing.assert_close(loss, expected)
    same = (student.argmax(1) == taught.argmax(1)).float().mean()
    assert metrics["agreement"] == same
    assert metrics["accuracy"] == (student.argmax(1) == labels).float().mean()


def test_the_teacher_has_its_own_size_mean_and_order_of_classes() -> None:
    preprocess = Preprocess((8, 12), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    given = []

    def model(images: torch.Tensor) -> torch.Tensor:
        given.append(images)
        return torch.arange(5.0).expand(len(images), -1)

    teacher = Teacher(model, preprocess, [3, 0, 4])  # type: ignore[arg-type]
    images = torch.full((2, 3, 4, 4), 51, dtype=torch.uint8)  # 0.2
    assert teacher.logits(images).tolist() == [[3.0, 0.0, 4.0]] * 2
    assert given[0].shape == (2, 3, 8, 12)
    values = given[0][0, :, 2, 5].tolist()
    assert values == pytest.approx([0.1 / 0.5, 0.0, -0.1 / 0.7], abs=1e-6)
    images = torch.randint(256, (2, 3, 8, 12)).to(torch.uint8)
    teacher.logits(images)
    assert torch.equal(given[1], preprocess.normalise(images))  # nothing is resized


def test_classes_are_matched_by_name() -> None:
    labels = ("cat", "dog", "newt", "owl")
    assert match_teacher_classes(labels, ("owl", "cat", "dog", "newt"), "x") == [3, 0, 1, 2]
    assert match_teacher_classes(labels, ("owl", "dog"), "x") == [3, 1]  # it may know more
    with pytest.raises(
        ConfigError, match=r"x does not know 1 of 2 classes of the data, such as 'y"
    ):
        match_teacher_classes(labels, ("owl", "yak"), "x")


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            FinetuneConfig(recipe=RecipeSettings(temperature=2.0)),
            "--temperature is for learning from a --teacher",
        ),
        (
            FinetuneConfig(recipe=RecipeSettings(teacher_weight=0.5)),
            "--teacher-weight is for learning from a --teacher",
        ),
        (
            FinetuneConfig(recipe=RecipeSettings(distillation="hard")),
            "--distillation is for learning from a --teacher",
        ),
        (
            FinetuneConfig(recipe=RecipeSettings(teacher="x", teacher_weight=1.5)),
            "--teacher-weight 1.5 is not a share",
        ),
        (
            FinetuneConfig(recipe=RecipeSettings(teacher="x", temperature=0.0)),
            "--temperature 0 must be above 0",
        ),
        (
            FinetuneConfig(recipe=RecipeSettings(teacher="x", temperature=2, distillation="hard")),
            "--temperature 2 softens probabilities",
        ),
        (
            FinetuneConfig(recipe=RecipeSettings(teacher="x"), task="mine:Mine"),
            "--teacher x teaches classes, and --task mine:Mine has none",
        ),
        (
            PretrainConfig(recipe=RecipeSettings(teacher="x")),
            "--teacher x teaches with --objective distill, not with supervised",
        ),
        (PretrainConfig(learn=ObjectiveSettings("distill")), "say which by --teacher SOURCE"),
        (
            PretrainConfig(
                learn=ObjectiveSettings("distill"),
                recipe=RecipeSettings(teacher="x", teacher_weight=0.5),
            ),
            "--teacher-weight 0.5: --objective distill reads no labels",
        ),
    ],
)
def test_contradictions_are_refused(config: FinetuneConfig, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        find_objective(config)
