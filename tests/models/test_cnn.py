"""The plain CNN against the same network written with torch's own layers, in float64."""

import pytest
import torch
from torch import Tensor, nn

import patchwords as pw
from patchwords.models.zoo import CNN_UNITS, list_models
from patchwords.planning.memory import count_unit_inputs
from patchwords.weights.architecture import find_architecture_name

SIDE = 37  # odd at several depths: every halving rounds up


class Sum(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def conv_norm_relu(inputs: int, outputs: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def build_plainly(units: tuple[int, ...], width: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for count in (1, *units):
        layers += [*conv_norm_relu(inputs, width), nn.MaxPool2d(2, ceil_mode=True)]
        for _ in range(count - 1):
            branch = conv_norm_relu(width, width) + conv_norm_relu(width, width)
            layers.append(Sum(nn.Sequential(*branch)))
        inputs, width = width, 2 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


@pytest.mark.parametrize(("name", "width"), [("CNN-4x1", 16), ("CNN-8x2", 32), ("CNN-3x2", 32)])
def test_logits_running_statistics_and_gradients(name: str, width: int) -> None:
    model = pw.create_model(name, num_classes=3, image_size=SIDE).double()
    plain = build_plainly(model.config.trunk.units, width, 3).double()  # type: ignore[union-attr]
    noise = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=noise).double()
    of_plain = [key for key in plain.state_dict() if not key.endswith("num_batches_tracked")]
    values = model.state_dict().values()
    plain.load_state_dict(dict(zip(of_plain, values, strict=True)), strict=False)
    images = torch.randn(4, 3, SIDE, SIDE, generator=noise).double()
    for training in (True, False):  # the second also sees the statistics that the first has moved
        found, expected = model.train(training)(images), plain.train(training)(images)
        # 1e-12: float64 sums in another order; the network is at most 9 layers deep.
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    for network in (model, plain):
        network.zero_grad()
        network(images).square().sum().backward()
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, atol=1e-10, rtol=1e-9)


def test_names_and_sizes() -> None:
    assert {"CNN-4x1", "CNN-4x2", "CNN-8x2"} <= set(list_models("CNN*"))
    sizes = {"CNN-4x1": 98_325, "CNN-8x2": 1_866_277}  # 5 classes; counted by hand from the layers
    for name, count in sizes.items():
        model = pw.create_model(name, num_classes=5, image_size=64)
        assert sum(parameter.numel() for parameter in model.parameters()) == count
        assert find_architecture_name(model.config) == name
    for depth in CNN_UNITS:
        model = pw.create_model(f"CNN-{depth}x1", num_classes=2, image_size=64)
        assert find_architecture_name(model.config) == f"CNN-{depth}x1"


def test_inputs_of_the_units_are_counted() -> None:
    model = pw.create_model("CNN-8x2", num_classes=2, image_size=SIDE)
    images = torch.zeros(2, 3, SIDE, SIDE)
    seen = [model.forward_until(images, unit)[0].numel() for unit in range(model.config.layers)]
    assert list(count_unit_inputs(model.config)) == seen
