"""Attacks on models whose best attack is known in closed form, and what they leave untouched."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness.attacks import (
    ATTACK_PERTURBATIONS,
    compute_loss_gradient,
    fgsm_attack,
    perturb_with_fgsm,
    perturb_with_pgd,
    pgd_attack,
)
from patchwords.evaluation.robustness.perturbation import PerturbationBatch
from patchwords.models.build import Model, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.zoo import create_model
from patchwords.weights.pretrained import Pretrained

SIZE = (5, 7)
MEAN, STD = (0.3, 0.5, 0.6), (0.2, 0.4, 0.7)


class Linear(nn.Module):
    """Logits that are linear in the pixels: convex in them is the loss."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(classes, 3 * 5 * 7, generator=own))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T / 20


def subject(model: nn.Module, size: tuple[int, int] = SIZE, bf16: bool = False) -> LoadedModel:
    classes = tuple("abc")
    source = Pretrained(cast(Model, model.eval()), Preprocess(size, mean=MEAN, std=STD), classes)
    return LoadedModel("model", source, Device(torch.device("cpu"), bf16), 0)


def images(count: int = 4, size: tuple[int, int] = SIZE) -> Tensor:
    own = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (count, 3, *size), generator=own, dtype=torch.uint8)


def small_vit() -> nn.Module:
    config = ViTConfig(4, 12, 2, 3, 23, image_size=(8, 8), num_classes=3)
    model = build_model(config)
    init_weights(model, 0)
    nn.init.normal_(model.head.linear.weight, generator=torch.Generator().manual_seed(3))
    return model


def losses(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """[B], normalised by hand"""
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (MEAN, STD))
    images = ((pixels.double() / 255 - mean) / std).to(next(model.parameters()).dtype)
    with torch.no_grad():
        return F.cross_entropy(model(images), labels, reduction="none")


def test_of_two_linear_logits_fgsm_finds_the_worst_of_the_ball() -> None:
    """The loss falls in (w_label - w_other) . x alone: the worst is a corner of the ball."""
    model, pixels, labels = Linear(2), images(), torch.tensor([0, 1, 1, 0])
    signs = (model.weight[1] - model.weight[0]).sign().view(3, *SIZE)
    away = torch.where(labels[:, None, None, None] == 0, signs, -signs)
    for epsilon in (0.5, 8.0):
        wanted = (pixels + epsilon * away).clamp(0, 255)
        torch.testing.assert_close(fgsm_attack(subject(model), pixels, labels, epsilon), wanted)


def test_the_gradient_is_that_of_each_images_own_loss() -> None:
    """By differences in float64, through the whole of a ViT."""
    pixels, labels = images(2, (8, 8)), torch.tensor([2, 0])
    found = compute_loss_gradient(subject(small_vit(), (8, 8)), pixels.float(), labels).double()
    model = small_vit().double()
    nudge = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    for place in ((0, 0, 0), (1, 3, 6), (2, 7, 7)):
        nudge.zero_()[0][place] = 0.01
        change = losses(model, pixels + nudge, labels) - losses(model, pixels - nudge, labels)
        # The gradient is of float32: 1e-7 of numbers that are 1e3 times larger than some of it.
        torch.testing.assert_close(found[(slice(None), *place)] * 0.02, change, rtol=1e-3, atol=0)


def test_pgd_never_loses_where_the_loss_is_convex() -> None:
    model, pixels, labels = Linear(3), images(), torch.tensor([0, 1, 2, 0])
    start = 2 * torch.rand(pixels.shape, generator=torch.Generator().manual_seed(4)) - 1
    attacked = pgd_attack(subject(model), pixels, labels, 4.0, start)
    begun = (pixels + 4.0 * start).clamp(0, 255)
    assert (losses(model, attacked, labels) > losses(model, begun, labels)).all()
    assert (losses(model, attacked, labels) > losses(model, pixels, labels)).all()


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_attacks_stay_in_the_ball_and_in_the_range(epsilon: float) -> None:
    asked = subject(small_vit(), (8, 8))
    pixels, labels = images(5, (8, 8)), torch.tensor([0, 1, 2, 0, 1])
    pixels[0], pixels[1] = 0, 255
    start = torch.ones(pixels.shape)
    for attacked in (
        fgsm_attack(asked, pixels, labels, epsilon),
        pgd_attack(asked, pixels, labels, epsilon, start),
        pgd_attack(asked, pixels, labels, epsilon, -start, steps=1),
    ):
        assert attacked.dtype == torch.float32
        assert (attacked - pixels.float()).abs().max() == epsilon  # levels of 255 are exact
        assert attacked.min() >= 0
        assert attacked.max() <= 255


def test_a_gradient_of_zero_moves_nothing() -> None:
    model = Linear(3)
    nn.init.zeros_(model.weight)
    pixels, labels = images(), torch.tensor([0, 1, 2, 0])
    assert torch.equal(fgsm_attack(subject(model), pixels, labels, 8.0), pixels.float())
    start = torch.zeros(pixels.shape)
    assert torch.equal(pgd_attack(subject(model), pixels, labels, 8.0, start), pixels.float())


@pytest.mark.parametrize("trainable", [True, False])
def test_the_model_is_as_it_was(trainable: bool) -> None:
    model = small_vit().requires_grad_(trainable)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = PerturbationBatch(
        images(2, (8, 8)), torch.tensor([0, 1]), [3, 5], subject(model, (8, 8))
    )
    with torch.no_grad():  # as the images are judged
        for attack in (perturb_with_fgsm, perturb_with_pgd):
            attacked = attack(batch, 2.0, 0)
            assert not attacked.requires_grad
            assert not torch.equal(attacked, batch.images.float())
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert parameter.requires_grad is trainable
        assert torch.equal(parameter, before[name])


def test_bfloat16_has_no_part_in_the_attack() -> None:
    pixels, labels = images(2, (8, 8)), torch.tensor([0, 1])
    exact, rough = subject(small_vit(), (8, 8)), subject(small_vit(), (8, 8), bf16=True)
    wanted = compute_loss_gradient(exact, pixels.float(), labels)
    with rough.device.autocast():
        torch.testing.assert_close(compute_loss_gradient(rough, pixels.float(), labels), wanted)


def test_where_pgd_begins_belongs_to_the_seed_and_the_image() -> None:
    asked = subject(small_vit(), (8, 8))
    pixels, labels = images(3, (8, 8)), torch.tensor([0, 1, 2])
    together = perturb_with_pgd(PerturbationBatch(pixels, labels, [11, 4, 9], asked), 4.0, 1)
    alone = perturb_with_pgd(PerturbationBatch(pixels[1:2], labels[1:2], [4], asked), 4.0, 1)
    torch.testing.assert_close(together[1:2], alone)
    for index, seed in ((5, 1), (4, 2)):
        other = perturb_with_pgd(
            PerturbationBatch(pixels[1:2], labels[1:2], [index], asked), 4.0, seed
        )
        assert not torch.allclose(other, alone)


def test_fgsm_finds_its_gradient_once_for_all_levels() -> None:
    asked = subject(small_vit(), (8, 8))
    batch = PerturbationBatch(images(2, (8, 8)), torch.tensor([0, 1]), [3, 5], asked)
    for epsilon in (1.0, 2.0):
        wanted = fgsm_attack(asked, batch.images, batch.labels, epsilon)
        assert torch.equal(perturb_with_fgsm(batch, epsilon, 0), wanted)
    assert len(batch.found) == 1


@pytest.mark.parametrize("name", ["R+ViT-Ti/16", "BiT-R26x1", "Axial-ViT-Ti/16"])
def test_every_family_can_be_attacked(name: str) -> None:
    settings = {"units": (1,)} if name.startswith("BiT") else {"depth": 1}
    model = create_model(name, num_classes=3, image_size=64, **settings)
    head = model.head.linear.weight
    nn.init.normal_(head, generator=torch.Generator().manual_seed(3))
    pixels, labels = images(1, (64, 64)), torch.tensor([1])
    asked = subject(model, (64, 64))
    attacked = fgsm_attack(asked, pixels, labels, 0.5)
    assert losses(model, attacked, labels) > losses(model, pixels, labels)


def test_attacks_are_asked_for_by_name_and_only_pgd_draws() -> None:
    assert [attack.seeds for attack in ATTACK_PERTURBATIONS] == [False, True]
    assert not any(attack.usual for attack in ATTACK_PERTURBATIONS)
