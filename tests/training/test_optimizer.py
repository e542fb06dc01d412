from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from every_kind import EVERY_KIND
from torch import nn

from patchwords.errors import ConfigError
from patchwords.models.build import Model, ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig
from patchwords.models.zoo import VIT_VARIANTS, resolve_model
from patchwords.training.engine.optimizer import (
    DecoupledSGD,
    build_optimizer,
    find_layer_index,
    freeze_layers,
    has_weight_decay,
)
from patchwords.training.plan import TrainingPlan

PLAN = TrainingPlan(
    images=101,
    steps=11,
    batch_size=7,
    optimizer="sgd",
    lr=0.1,
    schedule="constant",
    warmup_steps=0,
    weight_decay=0.3,
    log_every=1,
    eval_every=1,
    save_every=1,
)
SMALL = ViTConfig(
    patch_size=2, width=6, depth=3, heads=2, mlp_width=10, image_size=(4, 6), num_classes=5
)


RESNET = ResNetConfig(trunk=replace(BIT_TRUNK, units=(2, 1, 3)), num_classes=5)


def meta(config: ModelConfig = SMALL, **settings: Any) -> Model:
    with torch.device("meta"):  # names and shapes are all that matters
        return build_model(config.with_settings(**settings))


KINDS = [
    SMALL.with_settings(classifier=classifier, position=position, representation_size=size)
    for classifier, position, size in itertools.product(
        ("token", "gap", "map"), ("1d", "none"), (None, 11)
    )
]
NAMED = [resolve_model(f"ViT-{letter}/16").config for letter in VIT_VARIANTS]


@pytest.mark.parametrize("config", [*KINDS, *NAMED, *EVERY_KIND.values(), RESNET])
def test_decay_falls_on_kernels_only_and_every_parameter_has_a_group(config: ModelConfig) -> None:
    model = meta(config)
    optimizer = build_optimizer(model, PLAN, config)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(decay)
    for name, parameter in model.named_parameters():
        # A kernel is a ".weight" of two axes or more; the probe and the tables are no kernels.
        kernel = name.endswith(".weight") and parameter.ndim > 1
        assert decay[id(parameter)] == (0.3 if kernel else 0.0), name


@pytest.mark.parametrize("config", [*KINDS, *EVERY_KIND.values(), RESNET])
def test_every_layer_has_parameters_and_they_rise_with_depth(config: ModelConfig) -> None:
    layers = [find_layer_index(name, config) for name, _ in meta(config).named_parameters()]
    before, after = ("class_token", "positions.", "embed.", "trunk.root"), ("head.", "norm.")
    assert set(layers) == set(range(config.layers + 2))
    for (name, _), layer in zip(meta(config).named_parameters(), layers, strict=True):
        assert (layer == 0) >= name.startswith(before), name
        assert (layer == config.layers + 1) >= name.startswith(after), name
    # Modules are built in the order of the forward pass, except the class token.
    assert layers == sorted(layers)


@pytest.mark.parametrize("name", ["encoder.gate", "head.linear.scale", "embed.weights", ""])
def test_an_unknown_parameter_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is matched by 0 weight-decay rules"):
        has_weight_decay(name)


def test_layer_decay_scales_each_block() -> None:
    model = meta()
    optimizer = build_optimizer(model, PLAN, SMALL, layer_decay=0.5)
    scale = {id(p): g["scale"] for g in optimizer.param_groups for p in g["params"]}
    scales = {name: scale[id(parameter)] for name, parameter in model.named_parameters()}
    assert scales["head.linear.weight"] == scales["encoder.norm.bias"] == 1.0
    assert scales["encoder.blocks.2.mlp.fc1.weight"] == 0.5
    assert scales["encoder.blocks.0.norm1.weight"] == 0.125
    assert scales["embed.weight"] == scales["class_token"] == scales["positions.table"] == 0.0625
    assert len(build_optimizer(model, PLAN, SMALL).param_groups) == 2  # merged without it


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("trunk.root.conv.weight", 0),
        ("trunk.stages.0.0.conv1.weight", 1),
        ("trunk.stages.0.1.norm2.bias", 2),
        ("trunk.stages.1.0.shortcut.weight", 3),
        ("trunk.stages.2.0.conv2.weight", 4),
        ("trunk.stages.2.2.conv3.weight", 6),
        ("norm.weight", 7),
        ("head.linear.bias", 7),
    ],
)
def test_the_layers_of_a_resnet_are_its_units(name: str, layer: int) -> None:
    assert RESNET.layers == 6
    assert name in dict(meta(RESNET).named_parameters())
    assert find_layer_index(name, RESNET) == layer


def test_the_resnet_of_a_hybrid_is_below_the_first_block() -> None:
    hybrid = SMALL.with_settings(
        trunk=replace(HYBRID_TRUNK, units=(2, 1)), patch_size=1, image_size=16
    )
    layers = {name: find_layer_index(name, hybrid) for name, _ in meta(hybrid).named_parameters()}
    assert {layer for name, layer in layers.items() if name.startswith("trunk.")} == {0}
    assert layers["encoder.blocks.0.norm1.weight"] == 1


@pytest.mark.parametrize(
    ("train", "learn"),
    [
        ("all", ("",)),
        ("head", ("head.",)),
        ("last:1", ("head.", "encoder.norm.", "encoder.blocks.2.")),
        ("last:2", ("head.", "encoder.norm.", "encoder.blocks.2.", "encoder.blocks.1.")),
    ],
)
def test_freeze(train: str, learn: tuple[str, ...]) -> None:
    model = meta(classifier="map")
    assert_learn(model, train, SMALL, learn)


@pytest.mark.parametrize(
    ("train", "learn"),
    [
        ("all", ("",)),
        ("head", ("head.",)),
        ("last:1", ("head.", "norm.", "trunk.stages.2.2.")),
        ("last:4", ("head.", "norm.", "trunk.stages.2.", "trunk.stages.1.")),
    ],
)
def test_freeze_counts_the_residual_units_of_a_resnet(train: str, learn: tuple[str, ...]) -> None:
    assert_learn(meta(RESNET), train, RESNET, learn)


def assert_learn(model: Model, train: str, config: ModelConfig, learn: tuple[str, ...]) -> None:
    freeze_layers(model, train, config)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == name.startswith(learn), name
    optimizer = build_optimizer(model, PLAN, config)
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert given == {id(p) for p in model.parameters() if p.requires_grad}


def test_freeze_refuses_more_layers_than_there_are() -> None:
    freeze_layers(meta(), "last:3", SMALL)
    with pytest.raises(ConfigError, match=r"--train last:4: the model has 3 blocks"):
        freeze_layers(meta(), "last:4", SMALL)
    with pytest.raises(ConfigError, match=r"--train last:7: the model has 6 residual units"):
        freeze_layers(meta(RESNET), "last:7", RESNET)
    for wrong in ("last:0", "last:", "last:-1", "first:2", "heads"):
        with pytest.raises(ConfigError, match="choose all, head, norms, last:N"):
            freeze_layers(meta(), wrong, SMALL)


def descend(optimizer: str, lr: float, steps: int, gradient: Any) -> torch.Tensor:
    """Minimise Rosenbrock's function from its usual start (-1.2, 1); -> the end point."""
    model = nn.Module()
    model.class_token = nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64))
    plan = replace(PLAN, optimizer=optimizer, lr=lr, weight_decay=0.0)
    built = build_optimizer(model, plan, SMALL)
    for step in range(steps):
        built.param_groups[0]["lr"] = lr * (1 - step / steps)  # Adam circles at a constant rate
        model.class_token.grad = gradient(*model.class_token.detach())
        built.step()
    return model.class_token.detach()


def parabola(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([2 * (x - 3), 10 * (y + 5)])


def rosenbrock(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of (1 - x)^2 + 100 (y - x^2)^2, a bent valley with its minimum at (1, 1)."""
    return torch.stack([2 * (x - 1) - 400 * x * (y - x**2), 200 * (y - x**2)])


@pytest.mark.parametrize(
    ("optimizer", "lr", "steps", "gradient", "minimum"),
    [
        ("sgd", 0.02, 500, parabola, (3, -5)),
        ("adamw", 0.1, 500, parabola, (3, -5)),
        ("sgd", 4e-4, 6000, rosenbrock, (1, 1)),
        ("adamw", 0.05, 4000, rosenbrock, (1, 1)),
    ],
)
def test_known_minima_are_reached(
    optimizer: str, lr: float, steps: int, gradient: Any, minimum: tuple[int, int]
) -> None:
    reached = descend(optimizer, lr, steps, gradient)
    # Steps are finite; 1e-2 is 0.5 % of the way from the start.
    torch.testing.assert_close(reached, torch.tensor(minimum).double(), atol=1e-2, rtol=0)


def gradients(steps: int = 7) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(13, generator=generator, dtype=torch.float64) for _ in range(steps)]


def test_decoupled_sgd_by_hand() -> None:
    weights = nn.Parameter(torch.linspace(-1, 2, 13, dtype=torch.float64))
    hand, momentum = weights.detach().clone(), torch.zeros(13, dtype=torch.float64)
    optimizer = DecoupledSGD([weights], lr=0.05, momentum=0.9, weight_decay=0.4, fused=True)
    for gradient in gradients():
        weights.grad = gradient.clone()
        optimizer.step()
        hand *= 1 - 0.05 * 0.4
        momentum = 0.9 * momentum + gradient  # the decay does not enter it
        hand -= 0.05 * momentum
    # Float64, the same sums in another order.
    torch.testing.assert_close(weights.detach(), hand, atol=1e-14, rtol=0)
    torch.testing.assert_close(
        optimizer.state[weights]["momentum_buffer"], momentum, atol=1e-14, rtol=0
    )
    assert optimizer.param_groups[0]["weight_decay"] == 0.4  # as before the step


def test_adamw_by_hand() -> None:
    """Algorithm 2 of Loshchilov and Hutter 2019, with Table 3's betas."""
    model = nn.Module()
    model.embed = nn.Linear(13, 1, bias=False, dtype=torch.float64)
    hand = model.embed.weight.detach().clone()
    optimizer = build_optimizer(model, replace(PLAN, optimizer="adamw"), SMALL)
    m = v = torch.zeros(1, 13, dtype=torch.float64)
    for t, gradient in enumerate(gradients(), start=1):
        model.embed.weight.grad = gradient[None].clone()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        step = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        hand = hand * (1 - 0.1 * 0.3) - 0.1 * step
    # Float64; the fused kernel takes its powers of beta in another order.
    torch.testing.assert_close(model.embed.weight.detach(), hand, atol=1e-10, rtol=0)
