"""Similarity of positions, of every kind, and what the shares say of planted tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from patchwords.errors import ConfigError
from patchwords.interpret.positions import fit_position_structure, position_similarity
from patchwords.models.position import posemb_sincos_2d
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT

Build = Callable[..., ViT]
GRID = (5, 7)


def cosines(table: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """[N, D] -> [h, w, h, w]"""
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return (unit @ unit.T).reshape(*grid, *grid)


def test_one_dimensional_without_the_class_token(tiny: Build) -> None:
    model = tiny()
    found = position_similarity(model)
    assert (found.values.shape, found.layers, found.offsets) == ((1, 2, 3, 2, 3), (0,), False)
    expected = cosines(model.positions.table[0, 1:].detach().numpy(), (2, 3))
    np.testing.assert_allclose(found.values[0], expected, atol=1e-6)  # kept in float32


@pytest.mark.parametrize("position", ["2d", "sincos2d"])
def test_two_dimensional(tiny: Build, position: str) -> None:
    model = tiny(position=position)
    table = model.positions((2, 3), model.patch_embed.weight).detach().numpy()[0, 1:]
    found = position_similarity(model)
    np.testing.assert_allclose(found.values[0], cosines(table, (2, 3)), atol=1e-6)


@pytest.mark.parametrize(("place", "tables"), [("every", 3), ("shared", 1)])
def test_a_table_for_each_layer_that_has_one(tiny: Build, place: str, tables: int) -> None:
    model = tiny(position_at=place)
    found = position_similarity(model)
    assert found.layers == tuple(range(tables))
    expected = cosines(model.positions.table[-1, 1:].detach().numpy(), (2, 3))
    np.testing.assert_allclose(found.values[-1], expected, atol=1e-6)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a @ b / a.norm() / b.norm()).item()


def test_relative_positions_by_offset(tiny: Build) -> None:
    model = tiny(position="relative")
    found = position_similarity(model)
    assert found.values.shape == (3, 2, 3, 2, 3)
    assert found.offsets
    table = model.encoder.blocks[1].mixer.relative.table  # 11 offsets, that of 0 in the middle
    # from row 1, column 2 (place 5) to row 0, column 1 (place 1): offset 4
    assert found.values[1, 1, 2, 0, 1] == pytest.approx(cosine(table[5 + 4], table[5]))
    assert found.values[1, 0, 1, 1, 2] == pytest.approx(cosine(table[5 - 4], table[5]))


def test_axial_relative_positions_know_their_line_only(tiny: Build) -> None:
    model = tiny(position="relative", mixer="axial")
    found = position_similarity(model).values
    assert len(found) == 6
    along_rows = model.encoder.blocks[2].mixer.relative.table  # lines of 3: 5 offsets
    assert found[2, 1, 0, 1, 2] == pytest.approx(cosine(along_rows[0], along_rows[2]))
    along_columns = model.encoder.blocks[3].mixer.relative.table  # lines of 2: 3 offsets
    assert found[3, 1, 2, 0, 2] == pytest.approx(cosine(along_columns[2], along_columns[1]))
    same_row = np.zeros((2, 3, 2, 3), bool)
    for row in range(2):
        same_row[row, :, row, :] = True
    assert (np.isfinite(found[2]) == same_row).all()
    assert np.isfinite(found[3]).sum() == 2 * 3 * 2


def test_local_relative_positions_know_their_window_only(tiny: Build) -> None:
    model = tiny(position="relative", mixer="local", window=3, image_size=(9, 12))
    found = position_similarity(model).values
    relative = model.encoder.blocks[0].mixer.relative
    near = torch.cat([relative.rows[2], relative.columns[0]])  # one row back, one column on
    here = torch.cat([relative.rows[1], relative.columns[1]])
    assert found[0, 1, 1, 0, 2] == pytest.approx(cosine(near, here))
    assert np.isfinite(found[0, 1, 1]).sum() == 9
    assert np.isfinite(found[0, 0, 0]).sum() == 4


def test_nothing_to_compare(tiny: Build, resnet: ResNet) -> None:
    with pytest.raises(ConfigError, match="position 'none': this model has no position embeddings"):
        position_similarity(tiny(position="none"))
    with pytest.raises(ConfigError, match="a ResNet has no patches"):
        position_similarity(resnet)


def table_of(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """[h, D], [w, D] -> [h, w, h, w]: similarity of the sums"""
    return cosines((rows[:, None] + columns).reshape(-1, rows.shape[1]), GRID)


def test_a_table_of_rows_is_explained_by_rows() -> None:
    rows = np.eye(5, 16) + 0.3 * np.eye(5, 16, 1)
    found = fit_position_structure(table_of(rows, np.zeros((7, 16))))
    assert found.rows == pytest.approx(1)
    assert found.rows_and_columns == pytest.approx(1)
    assert found.columns < 0.05
    other = fit_position_structure(
        table_of(np.zeros((5, 16)), np.eye(7, 16) + 0.3 * np.eye(7, 16, 1))
    )
    assert other.columns == pytest.approx(1)
    assert other.rows < 0.05


def test_the_sine_table_is_rows_and_columns_in_sum() -> None:
    table = posemb_sincos_2d(GRID, 32, torch.empty(0))[0].numpy()
    found = fit_position_structure(cosines(table, GRID))
    assert found.rows_and_columns == pytest.approx(1, abs=1e-6)
    assert 0.2 < found.rows < 0.8
    assert 0.2 < found.columns < 0.8
    assert 0.5 < found.distance < 0.8  # a cross, and no disc


def test_a_random_table_has_no_structure() -> None:
    found = fit_position_structure(cosines(np.random.default_rng(0).normal(size=(35, 64)), GRID))
    assert max(found.rows, found.columns, found.rows_and_columns, found.distance) < 0.05


def test_distance_counts_where_it_falls_and_not_where_it_rises() -> None:
    y, x = np.divmod(np.arange(35), 7)
    apart = np.hypot(y[:, None] - y, x[:, None] - x).reshape(*GRID, *GRID)
    near = fit_position_structure(np.exp(-apart))
    assert near.distance == pytest.approx(1)
    assert near.rows_and_columns < 0.9
    far = fit_position_structure(apart / 10)
    assert far.distance == pytest.approx(0, abs=1e-9)


def test_shares_are_r_squared() -> None:
    """Against a regression written out over all pairs."""
    values = np.random.default_rng(1).normal(size=(*GRID, *GRID))
    y, x = np.divmod(np.arange(35), 7)
    other = ~np.eye(35, dtype=bool)
    s = values.reshape(35, 35)[other]
    down = np.abs(y[:, None] - y)[other]
    across = np.abs(x[:, None] - x)[other]
    design = np.hstack([np.eye(5)[down], np.eye(7)[across]])
    for columns, name in [
        (slice(0, 5), "rows"),
        (slice(5, 12), "columns"),
        (slice(0, 12), "rows_and_columns"),
    ]:
        terms, *_ = np.linalg.lstsq(design[:, columns], s, rcond=None)
        expected = 1 - ((s - design[:, columns] @ terms) ** 2).sum() / ((s - s.mean()) ** 2).sum()
        assert getattr(fit_position_structure(values), name) == pytest.approx(expected, abs=1e-12)
    apart = np.hypot(down, across)
    fitted = IsotonicRegression(increasing=False).fit(apart, s - apart).predict(apart)
    expected = 1 - ((s - apart - fitted) ** 2).sum() / ((s - apart - (s - apart).mean()) ** 2).sum()
    falling = values - np.hypot(y[:, None] - y, x[:, None] - x).reshape(*GRID, *GRID)
    assert fit_position_structure(falling).distance == pytest.approx(expected, abs=1e-12)


def test_pairs_that_are_not_there_are_left_out() -> None:
    values = np.random.default_rng(2).normal(size=(*GRID, *GRID))
    masked = values.copy()
    masked[:, :, 4] = np.nan  # as if no patch looked at the last row
    masked[4] = np.nan
    assert fit_position_structure(masked) == fit_position_structure(values[:4, :, :4])


def test_nothing_to_explain() -> None:
    for equal in (np.full((2, 3, 2, 3), 0.3), np.ones((1, 1, 1, 1)), np.full((2, 3, 2, 3), np.nan)):
        found = fit_position_structure(equal)
        assert (found.rows, found.columns, found.rows_and_columns, found.distance) == (0, 0, 0, 0)
