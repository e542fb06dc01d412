from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import relu

from patchwords.models.resnet.config import AXIAL_HEADS, TrunkConfig
from patchwords.models.resnet.trunk import (
    PositionSensitiveAxialAttention,
    PostActBottleneck,
    Trunk,
    resize_axis_table,
)

Array = np.ndarray
AXIAL = TrunkConfig((2, 1), spatial="axial")
C, ROWS, COLUMNS = 32, 5, 7  # 8 heads of width 4, of 2 for queries


def attention(axis: int, length: int, seed: int = 0) -> PositionSensitiveAxialAttention:
    return randomised(PositionSensitiveAxialAttention(C, axis, length).double(), seed)


def randomised(module: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
    return module


def feature_map(channels: int = C, rows: int = ROWS, columns: int = COLUMNS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, channels, rows, columns, generator=generator, dtype=torch.float64)


def source(line: Array, kernel: Array, tables: Array, norms: dict[str, Array]) -> Array:
    """AxialAttention of axialnet.py on one line [C, n], its BatchNorms with fixed statistics.

    A norm is a factor and an offset: of q k v by channel, of the three similarities by term (and
    the offset by head), of the two outputs by channel (and the second's factor alike for heads).
    `tables` [2 Dv, 2n-1]: offsets from -(n-1); that of keys counts from the key to the query.
    """
    n, dv = line.shape[1], line.shape[0] // AXIAL_HEADS
    dq = dv // 2
    qkv = norms["qkv_factor"][:, None] * (kernel @ line) + norms["qkv_offset"][:, None]
    result = np.zeros_like(line)
    for head, own in enumerate(qkv.reshape(AXIAL_HEADS, 2 * dv, n)):
        q, k, v = own[:dq], own[dq : 2 * dq], own[2 * dq :]
        for i in range(n):
            logits = np.zeros(n)
            for j in range(n):
                terms = (
                    q[:, i] @ k[:, j],
                    q[:, i] @ tables[:dq, i - j + n - 1],
                    k[:, j] @ tables[dq : 2 * dq, j - i + n - 1],
                )
                for t, term in enumerate(terms):
                    logits[j] += norms["factor"][t] * term + norms["offset"][t, head]
            a = np.exp(logits) / np.exp(logits).sum()
            of_values = sum(a[j] * v[:, j] for j in range(n))
            of_tables = sum(a[j] * tables[2 * dq :, i - j + n - 1] for j in range(n))
            channels = slice(head * dv, (head + 1) * dv)
            result[channels, i] = norms["value_factor"][channels] * of_values
            result[channels, i] += norms["table_factor"] * of_tables + norms["end"][channels]
    return result


def folded(
    kernel: Array, tables: Array, norms: dict[str, Array], n: int
) -> PositionSensitiveAxialAttention:
    """Our weights of the same map."""
    dv = C // AXIAL_HEADS
    dq, scale = dv // 2, (dv // 2) ** 0.5  # ours divides by it
    factor = norms["factor"]
    weight = norms["qkv_factor"][:, None] * kernel
    bias = norms["qkv_offset"].copy()
    for head in range(AXIAL_HEADS):
        start = head * 2 * dv
        query, value = slice(start, start + dq), slice(start + 2 * dq, start + 2 * dv)
        channels = slice(head * dv, (head + 1) * dv)
        for table in (weight, bias):
            table[query] *= factor[0] * scale
        weight[value] *= norms["value_factor"][channels, None]
        bias[value] *= norms["value_factor"][channels]
        bias[value] += norms["end"][channels]
    relative = np.concatenate(
        [
            tables[:dq] * factor[1] / factor[0],
            tables[dq : 2 * dq, ::-1] * factor[2] * scale,
            tables[2 * dq :] * norms["table_factor"][:, None],
        ]
    ).T
    ours = PositionSensitiveAxialAttention(C, axis=3, length=n).double()
    with torch.no_grad():
        ours.qkv.weight.copy_(torch.from_numpy(weight))
        ours.qkv.bias.copy_(torch.from_numpy(bias))
        ours.relative.copy_(torch.from_numpy(relative.copy()))
    return ours


@pytest.mark.parametrize("n", [1, 7])
def test_attention_is_axial_deeplabs_with_its_norms_folded_in(n: int) -> None:
    rng = np.random.default_rng(0)
    dv = C // AXIAL_HEADS
    kernel, tables = rng.normal(0, 0.3, (2 * C, C)), rng.normal(0, 0.5, (2 * dv, 2 * n - 1))
    norms = {
        "qkv_factor": rng.normal(1, 0.3, 2 * C),
        "qkv_offset": rng.normal(0, 0.3, 2 * C),
        "factor": np.array([0.7, 1.3, 0.9]),
        "offset": rng.normal(0, 0.3, (3, AXIAL_HEADS)),
        "value_factor": rng.normal(1, 0.3, C),
        "table_factor": rng.normal(1, 0.3, dv),
        "end": rng.normal(0, 0.3, C),
    }
    x = feature_map(columns=n)
    found = folded(kernel, tables, norms, n)(x)
    for b in range(2):
        for row in range(ROWS):
            expected = source(x[b, :, row].numpy(), kernel, tables, norms)
            # float64, sums of 32 products of size 1.
            assert abs(found[b, :, row].detach().numpy() - expected).max() < 1e-11


def test_columns_are_rows_of_the_transposed_map() -> None:
    x = feature_map()
    columns, rows = attention(2, ROWS), attention(3, ROWS)  # the same numbers
    expected = rows(x.mT).mT
    torch.testing.assert_close(columns(x), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("axis", [2, 3])
def test_a_line_sees_itself_only_and_all_of_it(axis: int) -> None:
    layer = attention(axis, feature_map().shape[axis])
    x = feature_map()
    other = x.clone()
    other[:, :, 2, 3] += 1.0
    changed = (layer(other) - layer(x)).abs().amax((0, 1))  # [h, w]
    line = changed[:, 3] if axis == 2 else changed[2]
    assert line.min() > 1e-3
    assert changed.count_nonzero() == line.numel()


def test_tables_are_stretched_linearly_with_ends_and_middle_kept() -> None:
    table = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert resize_axis_table(table, 5) is table
    for length in (2, 3, 4, 8, 13):
        found = resize_axis_table(table, length)
        offsets = np.linspace(-4, 4, 2 * length - 1)
        for column in range(3):
            expected = np.interp(offsets, np.arange(-4, 5), table[:, column].numpy())
            assert abs(found[:, column].numpy() - expected).max() < 1e-12
        assert torch.equal(found[[0, -1]], table[[0, -1]])
        torch.testing.assert_close(found[length - 1], table[4], atol=1e-12, rtol=0)
    assert torch.equal(resize_axis_table(table, 1), table[4:5])
    assert torch.equal(resize_axis_table(table[4:5], 3), table[4:5].expand(5, 3))


def test_tables_span_the_map_that_enters_the_unit() -> None:
    trunk = Trunk(AXIAL, 3, (45, 63))  # 12 x 16 after the root, 6 x 8 after stage 2's first unit
    lengths = [
        (unit.columns.relative.shape[0], unit.rows.relative.shape[0]) for unit in trunk.units()
    ]
    assert lengths == [(23, 31), (23, 31), (23, 31)]
    deeper = Trunk(TrunkConfig((1, 2), spatial="axial"), 3, (45, 63))
    last = list(deeper.units())[-1]
    assert (last.columns.relative.shape, last.rows.relative.shape) == ((11, 32), (15, 32))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_unit_is_height_then_width_then_the_mean_of_two_by_two(stride: int) -> None:
    unit = randomised(PostActBottleneck(AXIAL, 64, 32, stride, (ROWS, COLUMNS)).double())
    x = feature_map(64)
    y = unit.rows(unit.columns(relu(unit.norm1(unit.conv1(x)))))
    if stride == 2:  # odd sides: the last row and column are halves of a window
        y = torch.stack(
            [
                torch.stack([y[..., i : i + 2, j : j + 2].mean((2, 3)) for j in range(0, 7, 2)], -1)
                for i in range(0, 5, 2)
            ],
            -2,
        )
    y = unit.norm3(unit.conv3(relu(unit.norm2(y))))
    expected = relu(unit.shortcut_norm(unit.shortcut(x)) + y)
    torch.testing.assert_close(unit(x), expected, atol=1e-12, rtol=0)


def test_another_size_takes_stretched_tables_and_gradients_reach_them() -> None:
    trunk = randomised(Trunk(AXIAL, 2, (32, 32)).double())
    out = trunk(torch.ones(1, 2, 45, 1, dtype=torch.float64).cumsum(2))
    assert out.shape == (1, 512, 6, 1)
    out.square().sum().backward()
    for unit in trunk.units():
        assert unit.columns.relative.grad.count_nonzero() > 0


def test_parameters_of_a_unit() -> None:
    def count(spatial: Any) -> int:
        unit = PostActBottleneck(TrunkConfig(spatial=spatial), 256, 64, 1, (ROWS, COLUMNS))
        return sum(parameter.numel() for parameter in unit.parameters())

    # In place of 9 c^2: twice 2 c^2 + 2 c, and tables of (2 n - 1) rows of c / 4.
    c = 64
    expected = 2 * (2 * c**2 + 2 * c) + (2 * ROWS - 1 + 2 * COLUMNS - 1) * c // 4
    assert count("axial") - count("convolution") == expected - 9 * c**2
