from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_objective import PlainClassification
from torch import Tensor

from patchwords.data.loader import ImageBatch
from patchwords.device import choose_device
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.vit import ViT
from patchwords.training.engine.ema import EMA
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.optimizer import build_optimizer, freeze_layers
from patchwords.training.engine.state import TrainState
from patchwords.training.engine.step import StepMetrics, train_step
from patchwords.training.plan import TrainingPlan

PLAN = TrainingPlan(101, 11, 13, "sgd", 0.1, "constant", 0, 0.0, 1, 1, 1)
VIT = ViTConfig(
    patch_size=2, width=6, depth=2, heads=2, mlp_width=10, image_size=(4, 6), num_classes=5
)
SETTINGS = StepSettings(choose_device("cpu", "fp32"), seed=3, rate=lambda step: 0.1, clip=1e9)
BATCH = 13


def state_of(micro_batch: int = BATCH, train: str = "all", **vit: Any) -> TrainState:
    model = ViT(VIT.with_settings(**vit))
    init_weights(model, 0)
    torch.nn.init.normal_(model.head.linear.weight, generator=torch.Generator().manual_seed(1))
    freeze_layers(model, train, VIT)
    return TrainState(model.train(), build_optimizer(model, PLAN, VIT), None, micro_batch)


def batch() -> ImageBatch:
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (BATCH, 3, 4, 6), generator=generator, dtype=torch.uint8)
    return ImageBatch.of(images, torch.arange(BATCH) % 5)


def forward_of(state: TrainState) -> Callable[[Tensor], Tensor]:
    return lambda images: state.model(images.float() / 127.5 - 1)


def step(state: TrainState, settings: StepSettings = SETTINGS, forward: Any = None) -> StepMetrics:
    objective = PlainClassification(forward or forward_of(state))
    return train_step(state, objective, batch(), settings)


def weights(state: TrainState) -> Tensor:
    return torch.cat([p.detach().flatten() for p in state.model.parameters()])


@pytest.mark.parametrize("micro", [1, 2, 5, 12, 13, 50])
def test_parts_give_what_the_whole_gives(micro: int) -> None:
    whole, parts = state_of(), state_of(micro)
    a, b = step(whole), step(parts)
    # Float32: a sum of 13 gradients in another order.
    torch.testing.assert_close(weights(parts), weights(whole), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(b.sums, a.sums, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(b.grad_norm, a.grad_norm, atol=1e-5, rtol=1e-5)
    assert (b.images, parts.step) == (BATCH, 1)


def test_the_loss_is_the_mean_over_the_batch() -> None:
    state = state_of(micro_batch=5)
    whole = batch()
    expected = torch.nn.functional.cross_entropy(forward_of(state)(whole.images), whole.targets)
    gradients = torch.autograd.grad(expected, list(state.model.parameters()))
    before = weights(state)
    measured = step(state)
    torch.testing.assert_close(
        measured.sums["loss"] / BATCH, expected.detach(), atol=1e-6, rtol=1e-6
    )
    moved = torch.cat([g.flatten() for g in gradients])
    # The first step of SGD; float32.
    torch.testing.assert_close(weights(state), before - 0.1 * moved, atol=1e-6, rtol=1e-5)


def test_the_gradient_is_clipped_to_its_norm() -> None:
    state = state_of()
    before = weights(state)
    measured = step(state, replace(SETTINGS, clip=0.01))
    assert measured.grad_norm > 0.1  # the norm before
    moved = (weights(state) - before).norm().item()
    assert moved == pytest.approx(0.1 * 0.01, rel=1e-3)  # rate times clip; float32 differences


def test_the_rate_is_that_of_the_step_times_the_scale_of_the_group() -> None:
    state = state_of()
    state.optimizer = build_optimizer(state.model, PLAN, VIT, layer_decay=0.5)
    state.step = 4
    measured = step(state, replace(SETTINGS, rate=lambda step: 0.01 * step))
    assert measured.rate == 0.04
    assert {group["lr"] / 0.04 for group in state.optimizer.param_groups} == {1, 0.5, 0.25, 0.125}


def test_frozen_weights_do_not_move() -> None:
    state = state_of(train="head")
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    step(state)
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("head."), name


def test_noise_is_a_function_of_seed_and_step() -> None:
    def loss(seed: int = 3, at: int = 7, disturbed: bool = False) -> float:
        state = state_of(dropout=0.4, drop_path=0.4, micro_batch=5)
        state.step = at
        torch.manual_seed(99 if disturbed else 0)
        return step(state, replace(SETTINGS, seed=seed)).sums["loss"].item()

    assert loss() == loss(disturbed=True)
    assert len({loss(), loss(seed=4), loss(at=8)}) == 3


def test_parts_have_noise_of_their_own() -> None:
    state = state_of(dropout=0.4, micro_batch=1)
    logits: list[Tensor] = []

    def forward(part: Tensor) -> Tensor:
        logits.append(forward_of(state)(part))
        return logits[-1]

    whole = batch()
    alike = ImageBatch.of(whole.images[:1].expand_as(whole.images), whole.targets)
    train_step(state, PlainClassification(forward), alike, SETTINGS)
    assert len({tuple(row.flatten().tolist()) for row in logits}) == BATCH


def test_the_average_is_updated_with_the_number_of_the_step() -> None:
    state = state_of()
    state.average, state.step = EMA(state.model, 0.5), 2
    before = state.average.weights["positions.table"].clone()
    step(state)
    moved = 0.75 * (state.model.positions.table.detach() - before)  # decay (1 + 2) / (10 + 2)
    torch.testing.assert_close(state.average.weights["positions.table"], before + moved)


@pytest.mark.parametrize(("fits", "left"), [(12, 7), (3, 2), (1, 1)])
def test_out_of_memory_halves_the_parts_and_does_the_step_again(fits: int, left: int) -> None:
    whole, state = state_of(), state_of()
    forward = forward_of(state)

    def small_gpu(images: Tensor) -> Tensor:
        if len(images) > fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return forward(images)

    step(whole)
    step(state, forward=small_gpu)
    assert (state.micro_batch, state.step) == (left, 1)
    # Nothing of the failed attempts is left in the gradient; tolerance as for parts.
    torch.testing.assert_close(weights(state), weights(whole), atol=2e-6, rtol=1e-5)


def test_out_of_memory_in_the_middle_of_a_batch_leaves_no_half_gradient() -> None:
    whole, state = state_of(), state_of(micro_batch=4)
    forward, tries = forward_of(state), []

    def fills_up(images: Tensor) -> Tensor:
        tries.append(len(images))
        if len(tries) == 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return forward(images)

    step(whole)
    step(state, forward=fills_up)
    assert tries == [4, 4, 4, 2, 2, 2, 2, 2, 2, 1]
    torch.testing.assert_close(weights(state), weights(whole), atol=2e-6, rtol=1e-5)


def test_one_image_that_does_not_fit_is_an_error() -> None:
    def full(images: Tensor) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        step(state_of(), forward=full)


def test_state_survives_a_round_trip() -> None:
    state = state_of()
    state.average, state.skipped, state.best = EMA(state.model, 0.9), {"a": "b"}, {"step": 1}
    step(state)
    other = state_of(micro_batch=2)
    other.average = EMA(other.model, 0.9)
    other.load_dict(copy.deepcopy(state.to_dict()))
    step(state)
    step(other)
    assert torch.equal(weights(state), weights(other))
    for name, value in state.average.weights.items():
        assert torch.equal(value, other.average.weights[name])
    assert (other.micro_batch, other.step, other.skipped) == (BATCH, 2, {"a": "b"})
