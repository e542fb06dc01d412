"""What is done to the layers from outside changes nothing of what is computed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from every_kind import EVERY_KIND, lively
from plain_objective import PlainClassification
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from patchwords.data.loader import ImageBatch
from patchwords.device import Device
from patchwords.models.build import Model, build_model
from patchwords.models.cost import estimate_activation_bytes
from patchwords.models.init import init_weights
from patchwords.planning.memory import (
    FREE_MEMORY_SHARE,
    choose_micro_batch,
    estimate_checkpointed_bytes,
    group_layer_parts,
)
from patchwords.training.engine.gradients import (
    SharedBatch,
    StepSettings,
    accumulate_gradients,
)
from patchwords.training.engine.parallel import (
    checkpoint_activations,
    compile_layers,
    list_layers,
    restore_plain_layers,
)
from patchwords.training.engine.state import TrainState

KINDS = pytest.mark.parametrize("kind", EVERY_KIND)
IMAGES = torch.randn(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(5)
CPU = Device(torch.device("cpu"), bf16=False)


def model_of(kind: str) -> Model:
    return lively(EVERY_KIND[kind]).train()


def gradients(model: nn.Module) -> Tensor:
    """Those of the loss, one after the other, with the dropout of seed 2."""
    torch.manual_seed(2)
    cross_entropy(model(IMAGES), LABELS).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@KINDS
def test_checkpointed_activations_change_no_bit(kind: str) -> None:
    model = model_of(kind)
    assert len(list_layers(model)) == sum(
        layer.input is not None for layer in group_layer_parts(model.config)
    )
    calls = count_calls(list_layers(model)[-1])
    names = list(model.state_dict())
    expected = gradients(model)
    model.zero_grad()
    calls.clear()
    checkpoint_activations(model)
    assert torch.equal(gradients(model), expected)
    assert len(calls) == 2  # forward, and again in the backward pass
    assert list(model.state_dict()) == names
    restore_plain_layers(model)
    model.zero_grad()
    calls.clear()
    assert torch.equal(gradients(model), expected)
    assert len(calls) == 1


def count_calls(layer: nn.Module) -> list[None]:
    """Grows with each call of the layer's first child, whatever is done to the layer."""
    calls: list[None] = []
    next(layer.children()).register_forward_pre_hook(lambda *_: calls.append(None))
    return calls


@KINDS
def test_no_images_give_every_weight_a_gradient_of_zero(kind: str) -> None:
    """By them a process takes part in an exchange for which it has no image."""
    model = model_of(kind)
    state = TrainState(model, torch.optim.SGD(model.parameters()), None, micro_batch=4)
    pixels = torch.zeros(0, 3, 12, 12, dtype=torch.uint8)
    objective = PlainClassification(lambda images: model(images.float()))
    settings = StepSettings(CPU, seed=0, rate=lambda step: 0.1, clip=1.0)
    # the other process has 5: two parts
    batch = SharedBatch(ImageBatch.of(pixels, LABELS[:0]), [0, 5])
    sums = accumulate_gradients(state, objective, batch, settings)
    assert {name: float(value) for name, value in sums.items()} == {"loss": 0, "accuracy": 0}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@dataclass(frozen=True)
class Table:
    """Targets of several tensors, as an objective may have them."""

    places: Tensor
    masked: Tensor


def test_a_blank_has_the_shape_of_one() -> None:
    table = Table(torch.ones(0, 5), torch.ones(0, 3, 2).bool())
    blank = ImageBatch.of(torch.ones(0, 3), {"table": table, "values": torch.ones(0)}).blank()
    table, values = blank.targets["table"], blank.targets["values"]
    assert (table.places.shape, table.masked.shape, values.shape) == ((1, 5), (1, 3, 2), (1,))
    assert (table.masked.dtype, table.places.any()) == (torch.bool, torch.tensor(False))


def test_every_layer_is_compiled() -> None:
    """Whatever the depth: with stochastic depth each layer is a graph of its own."""
    config = EVERY_KIND["2d at every block"].with_settings(depth=11, dropout=0.0)
    model = build_model(config)
    init_weights(model, seed=1)
    names = list(model.state_dict())
    model(IMAGES)  # the compiler counts from here
    graphs: list[object] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    checkpoint_activations(model)
    compile_layers(model, backend=count)
    model(IMAGES)
    assert len(graphs) == 11
    assert list(model.state_dict()) == names


def test_checkpointing_lets_more_images_in(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EVERY_KIND["axial"].with_settings(depth=6)
    free = estimate_activation_bytes(config, 40) / FREE_MEMORY_SHARE
    monkeypatch.setattr("patchwords.planning.memory.free_memory", lambda device: int(free) + 1)
    without = choose_micro_batch(config, 640, CPU, "auto")
    with_it = choose_micro_batch(config, 640, CPU, "auto", checkpointing=True)
    assert without == 40
    assert with_it > without
    found = list(group_layer_parts(config))
    assert estimate_checkpointed_bytes(found, with_it, 4) <= free * FREE_MEMORY_SHARE
