"""Figures of insight: what must be in them, the right way round, the same bytes again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from patchwords.interpret.distance import AttentionDistances
from patchwords.interpret.faithfulness import FaithfulnessCurves
from patchwords.interpret.filters import PrincipalFilters
from patchwords.interpret.positions import PositionSimilarity, PositionStructure
from patchwords.report.figures import maps as gazes
from patchwords.report.figures.insight import (
    component_to_rgb,
    draw_attention_distance,
    draw_faithfulness,
    draw_filter_components,
    draw_position_similarity,
    draw_token_similarity,
    make_position_mosaic,
)
from patchwords.report.figures.maps import (
    MIN_OVERLAY_LIGHT,
    PhotoAttention,
    draw_attention_maps,
    draw_head_maps,
    frame_query_patch,
    overlay_map,
)

RANDOM = np.random.default_rng(0)


def words(figure: dict[str, bytes], name: str) -> str:
    """The texts of the SVG, lines joined; its PNG must be there, too."""
    assert sorted(figure) == [f"{name}.png", f"{name}.svg"]
    assert figure[f"{name}.png"].startswith(b"\x89PNG")
    drawn = figure[f"{name}.svg"].decode()
    return " ".join(part.split("-->")[0].strip() for part in drawn.split("<!--")[1:])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filters(channels: int) -> None:
    filters = PrincipalFilters(
        RANDOM.normal(size=(9, 5, 5, channels)), np.full(9, 0.04), "patch embedding", 11
    )
    found = words(draw_filter_components(filters), "filters")
    assert "The first 9 principal components of the 11 filters of the patch embedding" in found
    assert found.count("4.0%") == 9
    assert "36%" in found
    assert ("in grey" in found) == (channels != 3)


def test_a_filter_has_zero_in_the_middle() -> None:
    component = np.zeros((2, 2, 3))
    component[0, 1] = -4, 0, 2
    assert component_to_rgb(component)[0, 1].tolist() == [0, 0.5, 0.75]
    assert (component_to_rgb(np.zeros((2, 2, 1))) == 0.5).all()


@pytest.mark.parametrize(("tables", "titled"), [(1, []), (6, ["layer 0:", "layer 3:", "layer 5:"])])
def test_positions(tables: int, titled: list[str]) -> None:
    values = RANDOM.uniform(-1, 1, size=(tables, 2, 3, 2, 3)).astype(np.float32)
    values[:, 0, 0, 1, 1] = np.nan
    similarity = PositionSimilarity(values, tuple(range(tables)), offsets=tables > 1)
    shares = [PositionStructure(0.11, 0.22, 0.33, 0.44)] * tables
    found = words(draw_position_similarity(similarity, shares), "positions")
    assert "rows 11%, columns 22%, both 33%, distance 44%" in found
    assert all(title in found for title in titled)
    assert ("offset" in found) == (tables > 1)
    assert "Not every patch" not in found


def test_tiles_stand_where_their_patch_does() -> None:
    values = np.arange(2 * 3 * 2 * 3, dtype=float).reshape(2, 3, 2, 3)
    mosaic, rows, columns = make_position_mosaic(values)
    assert (rows, columns, mosaic.shape) == ([0, 1], [0, 1, 2], (5, 11))
    assert np.array_equal(mosaic[3:, 8:], values[1, 2])
    assert np.isnan(mosaic[2]).all()
    _, rows, columns = make_position_mosaic(np.zeros((14, 10, 14, 10)))
    assert (len(rows), rows[0], rows[-1], len(columns), columns[-1]) == (7, 0, 13, 7, 9)


@pytest.mark.parametrize("n", [1, 5])
def test_distance(n: int) -> None:
    distances = AttentionDistances((0, 2, 5), RANDOM.uniform(10, 90, size=(n, 3, 4)), 71.0)
    found = words(draw_attention_distance(distances, (96, 160)), "distance")
    assert "uniform attention" in found
    assert f"{'1 image' if n == 1 else '5 images'} of 96x160 pixels" in found
    assert ("standard error" in found) == (n > 1)


@pytest.mark.parametrize("prefix", [0, 1])
def test_tokens(prefix: int) -> None:
    found = words(draw_token_similarity(RANDOM.uniform(size=(3, 14, 2, 3)), prefix), "tokens")
    assert "3 images" in found
    assert ("there is no class token" in found) == (prefix == 0)


@pytest.mark.parametrize(("baseline", "said"), [("mean", "mean colour"), ("blur", "blurred")])
def test_truth(baseline: str, said: str) -> None:
    curves = {
        name: FaithfulnessCurves(np.full((4, 6), value), np.full((4, 6), value + 0.5))
        for name, value in {"rollout": 0.125, "random": 0.25}.items()
    }
    found = words(draw_faithfulness(curves, baseline), "truth")
    for text in ("rollout (0.125)", "rollout (0.625)", "random (0.250)", "4 images", said):
        assert text in found
    words(
        draw_faithfulness(
            {"rollout": FaithfulnessCurves(np.ones((1, 3)), np.ones((1, 3)))}, baseline
        ),
        "truth",
    )


def gaze() -> PhotoAttention:
    maps = {"last layer": np.array([[0.1, 0.2, 0.3]]), "rollout": np.array([[0.0, 0.0, 1.0]])}
    return PhotoAttention("$a.jpg", np.full((4, 12, 3), 0.5), "roses 81%", maps)


@pytest.mark.parametrize(("prefix", "said"), [(0, "no class token"), (1, "from the class token")])
def test_maps(prefix: int, said: str) -> None:
    found = words(draw_attention_maps([gaze(), gaze()], prefix), "maps")
    for text in ("2 photos", said, "$a.jpg", "roses 81%", "max 0.3", "last layer", "rollout"):
        assert text in found


def test_heads_of_many_and_of_a_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gazes, "MAX_HEADS_PER_ROW", 2)  # so that three take two rows
    attention = RANDOM.uniform(size=(2, 3, 2, 3))
    figure = draw_head_maps(gaze(), attention, [0, 4], [5, 7, 11], 1, (1, 2))
    found = words(figure, "heads")
    for head in (5, 7, 11):
        assert f"layer 0 head {head} " in found
        assert f"layer 4 head {head} " in found
    assert found.count("$a.jpg") == 4
    assert "the patch in row 1, column 2" in found


def test_an_overlay_is_bright_where_the_map_is() -> None:
    picture = np.full((5, 7, 3), 0.5)
    seen = overlay_map(picture, np.array([[0.0, 0.0, 4.0]]))
    assert seen[2, 6, 0] == pytest.approx(0.5)
    assert seen[2, 0, 0] == pytest.approx(0.5 * MIN_OVERLAY_LIGHT)
    assert np.isfinite(overlay_map(picture, np.zeros((2, 3)))).all()


def test_the_query_is_framed() -> None:
    marked = frame_query_patch(np.full((8, 12, 3), 0.25), (2, 3), (1, 2))
    assert (marked[4:8, 8:12] == 0.25).all()
    assert (marked[3, 7:] == 1).all()
    assert (marked[2, 6:] == 0).all()
    assert (marked[:2] == 0.25).all()


def test_the_same_numbers_give_the_same_bytes() -> None:
    torch.manual_seed(0)
    first, second = (draw_attention_maps([gaze()], 1) for _ in range(2))
    assert first == second
