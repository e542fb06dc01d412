"""Which held-out images of a run are shown with maps."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchwords.data.dataset import ImageDataset
from patchwords.data.open import open_data
from patchwords.evaluation.model_insight import ModelInsight
from patchwords.report import run_insight
from patchwords.report.run_data import PredictionRow, RunData
from patchwords.report.run_insight import choose_insight_examples, lacks_insight


def row(path: str, label: str, answer: str, probability: float) -> PredictionRow:
    correct = None if not label else label == answer
    return PredictionRow(path, label, answer, probability, correct, None)


RIGHT = [
    row("r1", "a", "a", 0.7),
    row("r2", "a", "a", 0.9),
    row("r3", "b", "b", 0.3),
    row("r4", "a", "a", 0.8),
]
WRONG = [row(f"w{i}", "a", "b", probability) for i, probability in enumerate((0.4, 0.6, 0.5, 0.3))]


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([*RIGHT, *WRONG], ["r2", "w1", "r3", "w2", "r4", "w0"]),
        (RIGHT, ["r2", "r3", "r4"]),
        (WRONG[:2], ["w1", "w0"]),
        ([row("x", "", "a", 0.9)], []),
    ],
)
def test_the_surest_of_each_class_and_the_surest_mistakes(
    rows: list[PredictionRow], shown: list[str]
) -> None:
    assert choose_insight_examples(rows) == shown


def test_who_is_looked_at_again(tmp_path: Path) -> None:
    digits = open_data("digits").splits["all"]
    assert not lacks_insight(RunData(tmp_path), digits)  # there is no model
    (tmp_path / "model").mkdir()
    arrays = {"filters": digits.sizes}
    assert lacks_insight(RunData(tmp_path), None)
    assert lacks_insight(RunData(tmp_path, insight={"error": "x"}, arrays=arrays), None)
    assert lacks_insight(RunData(tmp_path, insight={"images": True}), None)  # arrays are damaged
    assert not lacks_insight(RunData(tmp_path, insight={"images": True}, arrays=arrays), digits)
    without = RunData(tmp_path, insight={"images": False}, arrays=arrays)
    assert lacks_insight(without, digits)
    assert not lacks_insight(without, None)


def test_a_run_of_a_series_is_looked_at_once_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = open_data("digits").splits["all"]
    (tmp_path / "model").mkdir()
    (tmp_path / "evaluation.json").write_text("{}")
    done: list[tuple[object, ...]] = []

    def look(run: RunData, examples: ImageDataset, device: str) -> None:
        done.append(("look", run.folder, len(examples), device))
        ModelInsight({"images": True}, {"filters": digits.sizes}).write(run.folder)

    def page(folder: Path, examples: ImageDataset) -> Path:
        done.append(("page", folder, len(examples)))
        return folder / "report.html"

    monkeypatch.setattr(run_insight, "write_run_insight", look)
    monkeypatch.setattr(run_insight, "write_report", page)
    for _ in range(2):
        found = run_insight.write_report_with_insight(tmp_path, digits, "cpu")
        assert found == tmp_path / "report.html"
    n = len(digits)
    assert done == [("look", tmp_path, n, "cpu"), *[("page", tmp_path, n)] * 2]
