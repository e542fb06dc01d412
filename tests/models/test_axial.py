from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from patchwords.models.attention import Attention
from patchwords.models.mixers.axial import AxialAttention, Axis, get_line_grid
from patchwords.models.relative import RelativePositions
from patchwords.models.vit import ViT

GRID = (3, 5)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def axial_attention(axis: Axis, relative: bool = True) -> AxialAttention:
    """Two heads of width 7, every parameter drawn."""
    positions = RelativePositions(get_line_grid(axis, GRID), 0, 7, "bilinear-corners")
    attention = AxialAttention(14, 2, axis, positions if relative else None).double()
    for seed, parameter in enumerate(attention.parameters()):
        parameter.data = drawn(*parameter.shape, seed=seed)
    return attention


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_a_patch_sees_its_own_line_only(axis: Axis) -> None:
    attention = axial_attention(axis)
    x = drawn(2, 3, 5, 14, seed=9)
    other = x.clone()
    changed: tuple[slice | int, ...] = (
        (slice(None), 1) if axis == "rows" else (slice(None), slice(None), 1)
    )
    other[changed] += 1
    moved = attention(other.flatten(1, 2), GRID) - attention(x.flatten(1, 2), GRID)
    moved = moved.unflatten(1, GRID).abs().amax((0, 3)) > 1e-6  # [h, w]
    expected = torch.zeros(3, 5, dtype=torch.bool)
    expected[changed[1:]] = True
    assert torch.equal(moved, expected)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_lines_are_the_written_out_attention(axis: Axis) -> None:
    """Every line by itself, its relative positions the offsets along it."""
    attention = axial_attention(axis)
    w = {name: value.detach().numpy() for name, value in attention.state_dict().items()}
    x = drawn(3, 5, 14, seed=9)
    expected = np.zeros((3, 5, 14))
    lines = range(3) if axis == "rows" else range(5)
    for line in lines:
        own = (line, slice(None)) if axis == "rows" else (slice(None), line)
        q, k, v = np.split(x.numpy()[own] @ w["qkv.weight"].T + w["qkv.bias"], 3, axis=-1)
        y = np.zeros_like(q)
        for head in (slice(0, 7), slice(7, 14)):
            for i in range(len(q)):
                r = [w["relative.table"][i - j + len(q) - 1] for j in range(len(q))]
                logits = np.array([q[i, head] @ (k[j, head] + r[j]) for j in range(len(q))])
                e = np.exp(logits / np.sqrt(7))
                y[i, head] = e / e.sum() @ v[:, head]
        expected[own] = y @ w["out.weight"].T + w["out.bias"]
    with torch.no_grad():
        found = attention(x.flatten(0, 1)[None], GRID)[0].unflatten(0, GRID)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)  # float64: order of sums


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("grid", [GRID, (4, 2)])
@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_weights_are_what_forward_uses(axis: Axis, grid: tuple[int, int], relative: bool) -> None:
    attention = axial_attention(axis, relative)
    patches = grid[0] * grid[1]
    x = drawn(3, patches, 14, seed=9)
    a = attention.weights(x, grid)
    assert a.shape == (3, 2, patches, patches)
    place = torch.arange(patches)
    line = place // grid[1] if axis == "rows" else place % grid[1]
    assert torch.equal(a != 0, (line[:, None] == line).expand(3, 2, -1, -1))
    y = attention.proj((a @ attention.project(x)[2]).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, grid), y, atol=1e-11, rtol=0)


def test_on_a_grid_of_one_line_it_is_attention() -> None:
    axial = axial_attention("rows", relative=False)
    plain = Attention(14, 2).double()
    plain.load_state_dict(axial.state_dict())
    x = drawn(2, 11, 14, seed=9)
    torch.testing.assert_close(axial(x, (1, 11)), plain(x, (1, 11)), atol=1e-12, rtol=0)
    # Every patch is a column of its own: nothing but its value.
    axial.axis = "columns"
    alone = axial.proj(axial.project(x)[2].transpose(1, 2).flatten(2))
    torch.testing.assert_close(axial(x, (1, 11)), alone, atol=1e-12, rtol=0)


def test_every_block_is_a_pair_and_so_twice_the_parameters(tiny: Callable[..., ViT]) -> None:
    axial, plain = tiny(mixer="axial"), tiny(classifier="gap")

    def count(model: ViT) -> int:
        return sum(parameter.numel() for parameter in model.encoder.blocks.parameters())

    assert count(axial) == 2 * count(plain)
    assert [block.mixer.axis for block in axial.encoder.blocks] == ["rows", "columns"] * 3  # type: ignore[union-attr]
