"""Dropout on a CPU: chance, scale, gradient, and randomness from the seed alone."""

from __future__ import annotations

import math

import pytest
import torch

from patchwords.models.layers import Dropout, sample_dropout_mask

N = 1_000_003  # not a multiple of the four values in a draw


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_values_are_dropped_with_the_probability_and_the_mean_is_kept(p: float) -> None:
    torch.manual_seed(0)
    mask = sample_dropout_mask(torch.empty(N), p)
    error = math.sqrt(p * (1 - p) / N)  # standard deviation of the share that is dropped
    assert abs(float((mask == 0).double().mean()) - p) < 5 * error + 2**-17
    assert abs(float(mask.double().mean()) - 1) < 5 * error / (1 - p)
    kept = mask[mask != 0]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - round(p * 65536) / 65536)))


def test_neighbours_are_independent() -> None:
    torch.manual_seed(0)
    dropped = (sample_dropout_mask(torch.empty(N), 0.5) == 0).double() - 0.5
    for distance in (1, 2, 3, 4, 5, 8):  # within a draw of 64 bits, and across
        product = float((dropped[distance:] * dropped[:-distance]).mean())
        assert abs(product) < 5 * 0.25 / math.sqrt(N)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_goes_where_the_value_went(dtype: torch.dtype) -> None:
    x = torch.ones(7, 11, 13, dtype=dtype, requires_grad=True)
    y = Dropout(0.3)(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    y.sum().backward()
    assert torch.equal(x.grad, y)  # the mask itself, both times


def test_it_is_a_function_of_the_seed_and_nothing_in_evaluation() -> None:
    x, dropout = torch.randn(17, 19), Dropout(0.4)
    torch.manual_seed(5)
    first = dropout(x)
    second = dropout(x)
    torch.manual_seed(5)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(second, first)
    assert dropout.eval()(x) is x
    assert Dropout(0.0)(x) is x
