"""What a person sees: lines that fit, with what matters most."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from patchwords.training.logs.display import MAX_LINE_COLUMNS, Display, join_fitting_parts

ROW = {
    "kind": "train",
    "step": 400,
    "loss": 1.2344,
    "accuracy": 0.456,
    "images_per_second": 812.4,
    "data_wait": 0.021,
    "utilisation": 0.43,
    "batch_seconds": 0.6,
}
LARGEST = {
    **ROW,
    "step": 999_999,
    "loss": 123.4567,
    "accuracy": 1.0,
    "images_per_second": 123_456.7,
    "data_wait": 1.0,
    "utilisation": 1.04,
}

FORMATS = {"accuracy": ".1%"}


def lines_of(row: dict[str, Any], steps: int, **settings: Any) -> list[str]:
    """What `Display` writes of a train row, without what moves the cursor."""
    file = io.StringIO()
    console = Console(file=file, color_system=None, **settings)
    with Display(console) as display:
        display.start(0, steps, FORMATS)
        display.last_line = -1e9
        display.train(row)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).replace("\r", "\n")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_a_plain_line_has_every_part() -> None:
    [line] = lines_of(ROW, 1_652)
    assert line == (
        "step 400/1,652  loss 1.234  accuracy 45.6%  812 images/s  43% of peak  data wait 2%  "
        "13 min left"
    )
    assert len(line) <= MAX_LINE_COLUMNS


def test_the_live_line_has_every_part_and_a_bar() -> None:
    line = lines_of(ROW, 1_652, force_terminal=True, width=100)[-1]
    for words in ("loss 1.234", "accuracy 45.6%", "812 images/s", "43% of peak", "data wait 2%"):
        assert words in line
    assert "400/1,652" in line
    assert line.endswith("13 min left")


@pytest.mark.parametrize("row", [ROW, LARGEST, {**LARGEST, "batch_seconds": 9999.9}])
@pytest.mark.parametrize(
    "settings",
    [{}, {"force_terminal": True, "width": 100}, {"force_terminal": True, "width": 80}],
    ids=["file", "100 columns", "80 columns"],
)
def test_no_line_is_too_long(row: dict[str, Any], settings: dict[str, Any]) -> None:
    for line in lines_of(row, 1_000_000, **settings):
        assert len(line) <= settings.get("width", MAX_LINE_COLUMNS)
        assert "…" not in line
    assert f"{row['loss']:.3f}" in line
    assert line.endswith(" left")


def test_without_a_peak_utilisation_is_left_out() -> None:
    [line] = lines_of({name: ROW[name] for name in ROW if name != "utilisation"}, 1_652)
    assert "peak" not in line
    assert "data wait 2%" in line


def test_a_small_share_is_not_rounded_to_nothing() -> None:
    [line] = lines_of({**ROW, "utilisation": 0.0036}, 1_652)
    assert "0.4% of peak" in line


def test_evaluations_and_notes() -> None:
    file = io.StringIO()
    display = Display(Console(file=file))
    display.start(0, 1_000_000, FORMATS)
    place = {"step": 999_999, "epoch": 299.96}
    score = {"accuracy": 0.4564, "images": 5_000}
    evaluation = {**place, "kind": "evaluation", "split": "validation", "loss": 1.2344, **score}
    display.evaluation(evaluation)
    display.evaluation({**place, "kind": "fewshot", "shots": 5, **score})
    display.note({**place, "kind": "note", "text": "loss spike: 9, 9.44 robust deviations"})
    lines = file.getvalue().splitlines()
    assert lines == [
        "step 999,999/1,000,000  epoch 300.0  validation: accuracy 45.6%  loss 1.234  "
        "(5,000 images)",
        "step 999,999/1,000,000  epoch 300.0  5-shot: accuracy 45.6%  (5,000 images)",
        "step 999,999/1,000,000  loss spike: 9, 9.44 robust deviations",
    ]
    assert max(map(len, lines)) <= MAX_LINE_COLUMNS


def test_the_last_parts_are_left_out_if_they_do_not_fit() -> None:
    parts = ["loss 2.5", "accuracy 10.0%", "97 images/s"]
    assert join_fitting_parts(parts, 37) == "loss 2.5  accuracy 10.0%  97 images/s"
    assert join_fitting_parts(parts, 36) == "loss 2.5  accuracy 10.0%"
    assert join_fitting_parts(parts, 0) == "loss 2.5"
