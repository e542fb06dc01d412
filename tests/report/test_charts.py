"""Drawings and words: coordinates, ticks, averages and numbers as they are shown."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from patchwords.report.figures.svg import (
    MAX_LINE_POINTS,
    ChartFrame,
    ChartSeries,
    choose_ticks,
    confusion_pixel_map,
    line_chart,
    make_series,
)
from patchwords.report.format import (
    format_compact,
    format_learning_rate,
    format_percent,
    format_probability,
    pluralise,
)
from patchwords.report.html import Markup, join_markup, tag
from patchwords.report.run_data import RunData

NBSP = "\N{NO-BREAK SPACE}"


def test_a_frame_maps_the_corners_of_the_data_to_those_of_the_drawing() -> None:
    frame = ChartFrame(x=(0, 10), y=(1, 3), width=100, height=50, left=7, right=3, top=5, bottom=11)
    assert (frame.x_pixel(0), frame.x_pixel(10)) == (7, 97)
    assert (frame.y_pixel(1), frame.y_pixel(3)) == (39, 5)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 1200, [0, 250, 500, 750, 1000]),
        (0, 0.0031, [0, 0.001, 0.002, 0.003]),
        (0.85, 1, [0.85, 0.9, 0.95, 1]),
        (2, 2, [2]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert choose_ticks(low, high) == pytest.approx(expected)


def test_long_lines_are_averaged_in_buckets_that_keep_their_extremes() -> None:
    rows = [{"step": i, "loss": float(i % 2)} for i in range(3 * MAX_LINE_POINTS + 2)]
    points = make_series(rows, "loss", "training").points
    assert len(points) <= MAX_LINE_POINTS
    assert {(p.y, p.low, p.high, p.rows) for p in points[:-1]} == {(0.5, 0.0, 1.0, 4)}
    assert sum(p.rows for p in points) == len(rows)


def test_rows_without_a_finite_value_are_left_out() -> None:
    rows = [
        {"step": 1, "loss": float("nan")},
        {"step": 2, "loss": None},
        {"step": 3},
        {"step": 4, "loss": 1.0},
    ]
    assert [p.x for p in make_series(rows, "loss", "training").points] == [4]
    assert make_series([], "loss", "training").points == []


def test_a_chart_of_one_point_or_of_zeros_is_drawn() -> None:
    for value in (0.0, 3.5):
        one = make_series([{"step": 0, "lr": value}], "lr", "rate")
        assert "nan" not in line_chart([one], "rate", str)
    flat = ChartSeries(
        "flat", make_series([{"step": s, "lr": 0} for s in range(3)], "lr", "x").points
    )
    assert "inf" not in line_chart([flat], "flat", str)


def test_a_continued_run_keeps_the_last_row_of_a_step(tmp_path: object) -> None:
    metrics = [
        {"kind": "train", "step": 1, "loss": 1.0},
        {"kind": "train", "step": 2, "loss": 2.0},
        {"kind": "train", "step": 2, "loss": 3.0},  # logged again after a crash
        {"kind": "evaluation", "step": 2, "loss": 9.0},
    ]
    run = RunData(folder=tmp_path, metrics=metrics)  # type: ignore[arg-type]
    assert [row["loss"] for row in run.rows("train")] == [1.0, 3.0]


def test_the_pixel_map_marks_mistakes_by_their_share_of_the_row() -> None:
    uri = confusion_pixel_map([[3, 1], [0, 0]])
    image = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
    alpha = np.asarray(image)[..., 3]
    assert alpha.tolist() == [[round(255 * 0.75**0.5), round(255 * 0.5)], [0, 0]]


def test_plain_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<", Markup("<i></i>"), title='"') == '<p title="&quot;">&lt;<i></i></p>'
    assert tag("line", x1=1.23456, stroke_width=2, hidden=None) == (
        '<line x1="1.23" stroke-width="2"></line>'
    )
    assert join_markup("a", None, 3, "\udcff") == "a3?"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.9317, "93.2"),
        (1.0, "100.0"),
        (0.99971, "99.97"),  # not all, so not 100
        (0.0002, "0.02"),
        (0.0, "0.0"),
    ],
)
def test_percent_does_not_round_some_to_all(value: float, shown: str) -> None:
    assert format_percent(value) == f"{shown}{NBSP}%"


def test_words() -> None:
    assert format_percent(None) == format_percent(float("nan")) == "\N{EN DASH}"
    assert format_probability(0.99997) == f">99.9{NBSP}%"
    assert format_probability(0.0) == f"<0.1{NBSP}%"
    assert [format_compact(n) for n in (5_717_416, 1.254e9, 53)] == ["5.72 M", "1.25 G", "53"]
    assert [format_learning_rate(y) for y in (0, 0.00025, 0.0003, 0.005, 0.03)] == [
        *("0", "2.5e-4", "3e-4", "5e-3", "0.03"),
    ]
    assert [pluralise(n, "class", "classes") for n in (1, 1200)] == ["1 class", "1,200 classes"]
