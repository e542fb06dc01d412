from __future__ import annotations

import numpy as np
import pytest
import torch

from patchwords.models.attention import Attention
from patchwords.models.relative import RelativePositions, fold_relative_table, resize_relative_table


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def relative_attention(grid: tuple[int, int], prefix: int) -> Attention:
    """Three heads of width 5, every parameter drawn."""
    attention = Attention(15, 3, RelativePositions(grid, prefix, 5, "bilinear-corners")).double()
    for seed, parameter in enumerate(attention.parameters()):
        parameter.data = drawn(*parameter.shape, seed=seed)
    return attention


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


@pytest.mark.parametrize("prefix", [0, 1])
def test_relative_attention_is_the_written_out_one(prefix: int) -> None:
    """Appendix D.4, pair by pair, with the class token's own three embeddings."""
    rows, columns, width = 2, 3, 5
    attention = relative_attention((rows, columns), prefix)
    x = drawn(2, prefix + rows * columns, 15, seed=9)
    w = {name: value.detach().numpy() for name, value in attention.state_dict().items()}

    def embedding(query: int, key: int) -> np.ndarray:
        if prefix and query == 0:
            return w["relative.class_token"][2 if key == 0 else 0]
        if prefix and key == 0:
            return w["relative.class_token"][1]
        return w["relative.table"][query - key + rows * columns - 1]

    expected = []
    for image in x.numpy():
        q, k, v = np.split(image @ w["qkv.weight"].T + w["qkv.bias"], 3, axis=-1)
        y = np.zeros_like(image)
        for head in range(3):
            own = slice(head * width, (head + 1) * width)
            for i in range(len(image)):
                logits = [q[i, own] @ (k[j, own] + embedding(i, j)) for j in range(len(image))]
                y[i, own] = softmax(np.array(logits) / np.sqrt(width)) @ v[:, own]
        expected.append(y @ w["out.weight"].T + w["out.bias"])
    with torch.no_grad():
        found = attention(x, (rows, columns))
        a = attention.weights(x, (rows, columns))
        again = attention.proj((a @ attention.project(x)[2]).transpose(1, 2).flatten(2))
    # float64: the order of sums differs.
    np.testing.assert_allclose(found.numpy(), np.stack(expected), atol=1e-10)
    torch.testing.assert_close(again, found, atol=1e-10, rtol=0)
    torch.testing.assert_close(a.sum(-1), torch.ones_like(a[..., 0]))


def test_zero_tables_are_plain_attention() -> None:
    attention = relative_attention((3, 5), prefix=1)
    x = drawn(2, 16, 15, seed=9)
    seeing = attention(x, (3, 5))
    for parameter in attention.relative.parameters():  # type: ignore[union-attr]
        parameter.data.zero_()
    plain = Attention(15, 3).double()
    plain.load_state_dict(attention.state_dict(), strict=False)
    torch.testing.assert_close(attention(x, (3, 5)), plain(x, (3, 5)), atol=1e-12, rtol=0)
    assert (seeing - attention(x, (3, 5))).abs().max() > 1e-3


# ---- other grids ----


@pytest.mark.parametrize("grid", [(2, 3), (1, 5), (5, 1), (4, 7)])
def test_spreading_and_folding_undo_each_other(grid: tuple[int, int]) -> None:
    rows, columns = grid
    table = drawn(2 * rows * columns - 1, 3)
    spread = torch.empty(2 * rows - 1, 2 * columns - 1, 3, dtype=torch.float64)
    for dy in range(1 - rows, rows):
        for dx in range(1 - columns, columns):
            place = table[dy * columns + dx + rows * columns - 1]
            spread[dy + rows - 1, dx + columns - 1] = place
    assert torch.equal(fold_relative_table(spread), table)
    assert resize_relative_table(table, grid, grid, "bilinear-corners") is table


@pytest.mark.parametrize("grid", [(2, 3), (1, 5), (5, 1), (4, 7)])
def test_folding_is_the_mean_over_all_pairs_of_patches(grid: tuple[int, int]) -> None:
    rows, columns = grid
    spread = drawn(2 * rows - 1, 2 * columns - 1, 3)
    places = [(y, x) for y in range(rows) for x in range(columns)]
    found: dict[int, list[torch.Tensor]] = {}
    for i, (y, x) in enumerate(places):
        for j, (y2, x2) in enumerate(places):
            found.setdefault(i - j, []).append(spread[y - y2 + rows - 1, x - x2 + columns - 1])
    means = [torch.stack(found[offset]).mean(0) for offset in sorted(found)]
    assert len(means) == 2 * rows * columns - 1
    torch.testing.assert_close(fold_relative_table(spread), torch.stack(means), atol=1e-12, rtol=0)


def test_a_line_is_interpolated_along_its_offsets() -> None:
    """The ends stay at the ends, and so does offset 0 in the middle."""
    table = drawn(2 * 4 - 1, 2)
    resized = resize_relative_table(table, (1, 4), (1, 6), "bilinear-corners")
    at = np.linspace(0, 6, 11)
    expected = np.stack([np.interp(at, np.arange(7), column) for column in table.numpy().T], -1)
    np.testing.assert_allclose(resized.numpy(), expected, atol=1e-12)
    assert torch.equal(resized[5], table[3])


@pytest.mark.parametrize("method", ["bilinear-corners", "bicubic-antialias"])
@pytest.mark.parametrize("new", [(7, 3), (2, 2), (5, 11), (1, 1)])
def test_a_constant_stays_constant(new: tuple[int, int], method: str) -> None:
    table = torch.full((2 * 15 - 1, 2), 0.7, dtype=torch.float64)
    resized = resize_relative_table(table, (3, 5), new, method)
    expected = torch.full((2 * new[0] * new[1] - 1, 2), 0.7, dtype=torch.float64)
    torch.testing.assert_close(resized, expected, atol=1e-12, rtol=0)


def test_down_is_not_confused_with_across() -> None:
    """A table of dy, the same at every dx, stays one: only the middle of two dy is in between."""
    rows, columns = 3, 5
    spread = torch.arange(1.0 - rows, rows)[:, None, None].expand(-1, 2 * columns - 1, 1)
    table = fold_relative_table(spread.double())
    resized = resize_relative_table(table, (rows, columns), (5, 5), "bilinear-corners")[:, 0]
    # Straight down by n of 5 rows was n/2 of 3: offsets n * 5, of which every pair has dx = 0.
    torch.testing.assert_close(resized[24::5], torch.arange(5.0).double() / 2)


def test_half_precision_is_resized_in_single() -> None:
    table = drawn(2 * 15 - 1, 2).bfloat16()
    resized = resize_relative_table(table, (3, 5), (4, 7), "bilinear-corners")
    exact = resize_relative_table(table.float(), (3, 5), (4, 7), "bilinear-corners")
    assert torch.equal(resized, exact.bfloat16())
