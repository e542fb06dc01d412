from __future__ import annotations

import plain_resnet
import pytest
import torch

from patchwords.models.resnet.config import HYBRID_TRUNK, TrunkConfig
from patchwords.models.resnet.trunk import StdConv, compute_padding, standardise_weight

FORMS = ["std+1e-5", "var+1e-8", "var+1e-10"]


def kernels(scale: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (scale * (torch.randn(7, 5, 3, 3, generator=generator) + 0.3)).to(dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 1e-5])  # at 1e-5 the small numbers weigh as much
def test_weights_are_standardised_over_all_but_outputs(form: str, scale: float) -> None:
    weight = kernels(scale)
    found = standardise_weight(weight, form)
    expected = torch.from_numpy(plain_resnet.standardise(weight.numpy(), form))
    # The mean is 1e-16 of the weights off; divided by 1e-5 of them that is 1e-11.
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    if scale == 1:
        assert found.mean((1, 2, 3)).abs().max() < 1e-12
        assert (found.pow(2).mean((1, 2, 3)) - 1).abs().max() < 1e-4


def test_the_forms_differ_where_weights_are_small() -> None:
    first, second, third = (standardise_weight(kernels(1e-5), form) for form in FORMS)
    assert (first - second).abs().max() > 0.1
    assert (first - third).abs().max() > 0.1
    assert (second - third).abs().max() > 0.1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_a_constant_kernel_gives_zeros_and_finite_gradients(form: str, value: float) -> None:
    weight = torch.full((3, 5, 3, 3), value, dtype=torch.float64, requires_grad=True)
    found = standardise_weight(weight, form)
    assert found.abs().max() < 1e-9
    (found * kernels()[:3]).sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_statistics_are_taken_in_float32(form: str) -> None:
    exact = kernels(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(standardise_weight(exact, form), standardise_weight(exact, form).float())
        inside = standardise_weight(exact, form)
    assert torch.equal(inside, standardise_weight(exact, form))
    half = exact.bfloat16()
    expected = standardise_weight(half.float(), form).bfloat16()
    assert torch.equal(standardise_weight(half, form), expected)


def test_each_forward_pass_sees_the_weights_as_they_are() -> None:
    conv = StdConv(HYBRID_TRUNK, 5, 7, 3).double()
    x = torch.ones(2, 5, 4, 6, dtype=torch.float64).cumsum(3)
    before = conv(x)
    with torch.no_grad():
        conv.weight.mul_(3.0).add_(0.25)  # standardising takes it back, but for 1e-5
    torch.testing.assert_close(conv(x), before, atol=1e-2, rtol=0)
    with torch.no_grad():
        conv.weight.copy_(kernels())
    assert (conv(x) - before).abs().max() > 0.1


@pytest.mark.parametrize(
    ("sides", "size", "stride", "expected"),
    [
        ((224, 224), 7, 2, (2, 3, 2, 3)),  # as XLA pads: root, pooling, 3x3
        ((112, 112), 3, 2, (0, 1, 0, 1)),
        ((7, 56), 3, 2, (1, 1, 0, 1)),
        ((14, 13), 3, 1, (1, 1, 1, 1)),
        ((14, 13), 1, 2, (0, 0, 0, 0)),
        ((1, 2), 7, 2, (3, 3, 2, 3)),
    ],
)
def test_margins(
    sides: tuple[int, int], size: int, stride: int, expected: tuple[int, int, int, int]
) -> None:
    x = torch.empty(1, 1, *sides, device="meta")
    assert compute_padding(x, size, stride, "same") == expected
    assert compute_padding(x, size, stride, "symmetric") == (size // 2,) * 4


@pytest.mark.parametrize("padding", ["same", "symmetric"])
@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_is_the_formula(padding: str, size: int, stride: int) -> None:
    config = TrunkConfig(padding=padding)  # type: ignore[arg-type]
    conv = StdConv(config, 5, 7, size, stride).double()
    generator = torch.Generator().manual_seed(1)
    for sides in [(1, 1), (2, 1), (4, 7), (11, 6)]:
        x = torch.randn(2, 5, *sides, generator=generator, dtype=torch.float64)
        weight = conv.weight.detach().numpy()
        expected = plain_resnet.conv(x.numpy(), weight, stride, config)
        assert expected.shape[2:] == (-(-sides[0] // stride), -(-sides[1] // stride))
        # float64, sums of 245 products of size 1.
        torch.testing.assert_close(conv(x), torch.from_numpy(expected), atol=1e-11, rtol=0)
