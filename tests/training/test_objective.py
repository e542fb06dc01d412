"""The loss and the running average, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.tasks.classification.losses import (
    classification_loss,
    compute_class_weights,
    count_correct,
    sigmoid_loss,
)
from patchwords.tasks.classification.pretraining import SupervisedPretraining
from patchwords.training.config import PretrainConfig
from patchwords.training.engine.ema import EMA
from patchwords.training.objective_settings import ObjectiveSettings

CLASSES, IMAGES = 7, 11


def logits() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return 3 * torch.randn(IMAGES, CLASSES, generator=generator, dtype=torch.float64)


def shares() -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.rand(IMAGES, CLASSES, generator=generator, dtype=torch.float64).softmax(-1)


LABELS = torch.arange(IMAGES) * 5 % CLASSES


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_by_hand(smoothing: float, weighted: bool, soft: bool) -> None:
    wanted = shares() if soft else torch.eye(CLASSES, dtype=torch.float64)[LABELS]
    weights = torch.linspace(0.3, 2.1, CLASSES) if weighted else None
    smooth = (1 - smoothing) * wanted + smoothing / CLASSES
    log_p = logits() - logits().exp().sum(-1, keepdim=True).log()
    factors = torch.ones(CLASSES) if weights is None else weights
    by_hand = -(factors * smooth * log_p).sum(-1)  # [B]
    loss = classification_loss(
        logits(),
        wanted.float() if soft else LABELS,
        label_smoothing=smoothing,
        class_weights=weights,
    )
    assert loss.dtype == torch.float32
    # Float32 has 7 digits, and losses here are below 20.
    torch.testing.assert_close(loss.double(), by_hand, atol=5e-6, rtol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_sigmoid_cross_entropy_by_hand(smoothing: float, weighted: bool, soft: bool) -> None:
    """A yes or no for each class, summed over the classes (big_vision, utils.sigmoid_xent)."""
    wanted = shares() if soft else torch.eye(CLASSES, dtype=torch.float64)[LABELS]
    weights = torch.linspace(0.3, 2.1, CLASSES) if weighted else None
    smooth = (1 - smoothing) * wanted + smoothing / CLASSES
    yes = 1 / (1 + (-logits()).exp())
    by_hand = -(smooth * yes.log() + (1 - smooth) * (1 - yes).log()).sum(-1)  # [B]
    if weights is not None:
        by_hand = by_hand * (wanted * weights).sum(-1)
    loss = sigmoid_loss(
        logits(),
        wanted.float() if soft else LABELS,
        label_smoothing=smoothing,
        class_weights=weights,
    )
    assert loss.dtype == torch.float32
    # Float32 has 7 digits, and losses here are below 50.
    torch.testing.assert_close(loss.double(), by_hand, atol=2e-5, rtol=0)


def test_classification_takes_the_loss_it_is_told() -> None:
    batch = ImageBatch.of(torch.zeros(IMAGES, 3, 2, 2, dtype=torch.uint8), LABELS)
    for name, loss in (("softmax", classification_loss), ("sigmoid", sigmoid_loss)):
        config = PretrainConfig(learn=ObjectiveSettings(loss=name))
        objective = SupervisedPretraining(config, Preprocess((2, 2)))
        objective.class_weights = None
        mean, metrics = objective.loss(lambda images: logits(), batch, 0)
        assert torch.equal(mean, loss(logits(), LABELS).mean())
        assert metrics["accuracy"] * IMAGES == count_correct(logits(), LABELS)


def test_the_loss_is_computed_in_float32_whatever_the_logits_are() -> None:
    half = logits().bfloat16()
    expected = classification_loss(half.float(), LABELS)
    torch.testing.assert_close(classification_loss(half, LABELS), expected, atol=0, rtol=0)


def test_balanced_weights() -> None:
    counts = torch.tensor([2, 0, 30, 5])
    weights = compute_class_weights(counts)
    assert weights[1] == 0.0  # a class without images must not be infinite
    per_class = (weights * counts)[counts > 0]
    torch.testing.assert_close(per_class, per_class[:1].expand(3))  # each class has equal weight
    labels = torch.repeat_interleave(torch.arange(4), counts)
    assert weights[labels].mean().item() == pytest.approx(1.0, rel=1e-6)  # float32
    assert compute_class_weights(torch.tensor([4, 4, 4])).tolist() == [1.0, 1.0, 1.0]


def test_count_correct() -> None:
    guesses = torch.eye(CLASSES)[[0, 1, 2, 3]]
    assert count_correct(guesses, torch.tensor([0, 1, 5, 3])).item() == 3
    mixed = torch.tensor([[0.6, 0.4], [0.4, 0.6]])  # the larger share counts
    assert count_correct(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), mixed).item() == 1


def test_average_by_hand_with_its_warm_up() -> None:
    model = nn.Linear(5, 3)
    average = EMA(model, decay=0.7)
    expected = model.weight.detach().double()
    for step in range(30):
        with torch.no_grad():
            model.weight += 0.1 * (step % 4)
        average.update(model, step)
        decay = min(0.7, (1 + step) / (10 + step))  # held back up to step 20
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    # 30 sums in float32.
    torch.testing.assert_close(average.weights["weight"].double(), expected, atol=1e-5, rtol=1e-6)
    assert (1 + 0) / (10 + 0) < 0.7 < (1 + 29) / (10 + 29)  # both branches were taken


def test_average_is_float32_its_own_and_still_where_the_weights_are() -> None:
    model = nn.Linear(5, 3).bfloat16()
    average = EMA(model, decay=0.9)
    assert {value.dtype for value in average.weights.values()} == {torch.float32}
    before = {name: value.clone() for name, value in average.weights.items()}
    for step in range(3):
        average.update(model, step)  # weights that did not move (frozen ones) stay to the bit
    for name, value in average.weights.items():
        assert torch.equal(value, before[name])
        assert value.data_ptr() != model.state_dict()[name].data_ptr()
