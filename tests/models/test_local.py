from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from patchwords.errors import ConfigError
from patchwords.models.attention import Attention
from patchwords.models.mixers import local
from patchwords.models.mixers.local import LocalAttention, WindowRelativePositions, block_mask

# Sides that the blocks of a window divide, that they do not, and a window as wide as the grid.
CASES = [((5, 7), 3), ((5, 7), 5), ((6, 9), 3), ((3, 11), 3), ((2, 3), 1)]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def local_attention(window: int, relative: bool) -> LocalAttention:
    """Three heads of width 4, every parameter drawn."""
    positions = WindowRelativePositions(window, 4) if relative else None
    attention = LocalAttention(12, 3, window, positions).double()
    for seed, parameter in enumerate(attention.parameters()):
        parameter.data = drawn(*parameter.shape, seed=seed)
    return attention


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("grid", "window"), CASES)
def test_local_attention_is_the_written_out_one(
    grid: tuple[int, int], window: int, relative: bool
) -> None:
    """Patch by patch over its neighbours on the grid; halves of r by row and by column."""
    attention = local_attention(window, relative)
    w = {name: value.detach().numpy() for name, value in attention.state_dict().items()}
    x = drawn(grid[0] * grid[1], 12, seed=9)
    radius = window // 2
    projected = x.numpy() @ w["qkv.weight"].T + w["qkv.bias"]
    q, k, v = np.split(projected.reshape(*grid, 36), 3, axis=-1)
    y = np.zeros((*grid, 12))
    for row, column in np.ndindex(*grid):
        near = [
            (row + a, column + b)
            for a in range(-radius, radius + 1)
            for b in range(-radius, radius + 1)
            if 0 <= row + a < grid[0] and 0 <= column + b < grid[1]
        ]
        for head in (slice(0, 4), slice(4, 8), slice(8, 12)):
            logits = []
            for there in near:
                key = k[there][head]
                if relative:
                    by_row = w["relative.rows"][row - there[0] + radius]
                    by_column = w["relative.columns"][column - there[1] + radius]
                    key = key + np.concatenate([by_row, by_column])
                logits.append(q[row, column, head] @ key / 2)  # sqrt(4)
            e = np.exp(np.array(logits))
            y[row, column, head] = e / e.sum() @ np.stack([v[there][head] for there in near])
    expected = y.reshape(-1, 12) @ w["out.weight"].T + w["out.bias"]
    with torch.no_grad():
        found = attention(x[None], grid)[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)  # float64: order of sums


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("grid", "window"), CASES)
def test_weights_are_what_forward_uses(grid: tuple[int, int], window: int, relative: bool) -> None:
    attention = local_attention(window, relative)
    patches = grid[0] * grid[1]
    x = drawn(2, patches, 12, seed=9)
    a = attention.weights(x, grid)
    assert a.shape == (2, 3, patches, patches)
    y, column = torch.arange(patches) // grid[1], torch.arange(patches) % grid[1]
    far = torch.maximum((y[:, None] - y).abs(), (column[:, None] - column).abs()) > window // 2
    assert torch.equal(a == 0, far.expand(2, 3, -1, -1))
    out = attention.proj((a @ attention.project(x)[2]).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, grid), out, atol=1e-11, rtol=0)


def test_a_window_that_covered_everything_is_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "check_window", lambda window, grid: None)  # 7 in 3x4 is refused
    attention = local_attention(7, relative=False)
    plain = Attention(12, 3).double()
    plain.load_state_dict(attention.state_dict())
    x = drawn(2, 12, 12, seed=9)
    torch.testing.assert_close(attention(x, (3, 4)), plain(x, (3, 4)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("relative", [False, True])
def test_gradients_are_those_of_the_masked_full_matrix(relative: bool) -> None:
    """The last blocks are filled up with places that see nothing: no NaN may come from them."""
    attention = local_attention(3, relative)
    x = drawn(2, 20, 12, seed=9)
    parameters = list(attention.parameters())
    found = torch.autograd.grad(attention(x, (4, 5)).square().sum(), parameters)
    a = attention.weights(x, (4, 5))
    y = attention.proj((a @ attention.project(x)[2]).transpose(1, 2).flatten(2))
    expected = torch.autograd.grad(y.square().sum(), parameters)
    # Gradients are up to 1e5 here.
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-10)


def test_work_grows_with_the_number_of_patches() -> None:
    attention = local_attention(3, relative=True)
    flops = {}
    for rows in (6, 12, 24):
        with FlopCounterMode(display=False) as counter:
            attention(drawn(1, rows * 9, 12), (rows, 9))
        flops[rows] = counter.get_total_flops()
    assert flops[24] == 2 * flops[12] == 4 * flops[6]


def test_a_grid_without_place_for_the_window_is_refused() -> None:
    attention = local_attention(5, relative=False)
    for method in (attention.forward, attention.weights):
        with pytest.raises(ConfigError, match="window 5 has no place in a grid of 4x9 patches"):
            method(drawn(1, 36, 12), (4, 9))


def test_no_query_sees_nothing_not_even_beyond_the_border() -> None:
    inner, outer = torch.arange(3), torch.arange(-1, 4)
    queries, keys = torch.cartesian_prod(inner, inner), torch.cartesian_prod(outer, outer)
    mask = block_mask(queries, keys, (4, 7), window=3)  # the last block has one place of 9 inside
    assert mask.shape == (6, 9, 25)
    assert mask.any(-1).all()
