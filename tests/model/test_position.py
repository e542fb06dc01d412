from __future__ import annotations

import numpy as np
import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.model.position import METHODS, resize_positions


def table(prefix: int, rows: int, columns: int, width: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (1, prefix + rows * columns, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_grid_is_the_identity(method: str) -> None:
    positions = table(1, 3, 7)
    assert torch.equal(resize_positions(positions, (3, 7), (3, 7), 1, method), positions)


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((14, 14), (7, 11)), ((3, 7), (5, 13))]
)
def test_bilinear_corners_is_the_authors_zoom(old: tuple[int, int], new: tuple[int, int]) -> None:
    """scipy.ndimage.zoom(order=1), as vit_jax/checkpoint.py calls it."""
    zoom = pytest.importorskip("scipy.ndimage", reason="scipy is not installed").zoom
    positions = table(1, *old)
    grid = positions[0, 1:].unflatten(0, old).numpy()
    expected = zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    resized = resize_positions(positions, old, new, 1)
    assert torch.equal(resized[:, :1], positions[:, :1])  # the class token's row is kept
    # Both are float64; the sample points are computed in another order.
    np.testing.assert_allclose(resized[0, 1:].unflatten(0, new).numpy(), expected, atol=1e-12)


def test_rows_and_columns_are_not_confused() -> None:
    rows = torch.arange(3.0).view(1, 3, 1, 1).expand(1, 3, 4, 1).flatten(1, 2)  # value = row
    resized = resize_positions(rows, (3, 4), (5, 2), prefix=0).view(5, 2)
    expected = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0])[:, None].expand(5, 2)
    torch.testing.assert_close(resized, expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_stays_constant(method: str) -> None:
    resized = resize_positions(torch.full((1, 12, 2), 0.7), (3, 4), (8, 3), 0, method)
    # The weights of each new point add to 1; float32 sums of up to 16 of them.
    torch.testing.assert_close(resized, torch.full((1, 24, 2), 0.7), atol=1e-6, rtol=0)


def test_bicubic_looks_at_all_patches_when_it_shrinks() -> None:
    """Antialiased: with 12 -> 3, every old patch has a say; bilinear-corners takes 3 of 12."""
    positions = torch.eye(12).view(1, 12, 12)  # 1 x 12 grid, one-hot
    seen = {
        method: (resize_positions(positions, (1, 12), (1, 3), 0, method).abs().sum(1) > 1e-6).sum()
        for method in METHODS
    }
    assert seen["bicubic-antialias"] == 12
    assert seen["bilinear-corners"] < 12


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_resized_in_single(method: str) -> None:
    positions = table(1, 3, 4).bfloat16()
    resized = resize_positions(positions, (3, 4), (5, 7), 1, method)
    exact = resize_positions(positions.float(), (3, 4), (5, 7), 1, method)
    assert resized.dtype == torch.bfloat16
    assert torch.equal(resized, exact.bfloat16())


def test_a_table_of_another_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match="22 rows is not 1 \\+ 3x4"):
        resize_positions(table(1, 3, 7), (3, 4), (5, 5))
    with pytest.raises(ConfigError, match="did you mean 'bicubic-antialias'"):
        resize_positions(table(1, 3, 7), (3, 7), (5, 5), method="bicubic")
