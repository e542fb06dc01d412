"""A run beside others: the table, the curves, and what the difference is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fabricated_run import fabricate, write_json

from patchwords.cli import main
from patchwords.report.html import plain
from patchwords.report.run import read_run
from patchwords.report.write import write_report


def answer(folder: Path, right: str) -> None:
    """predictions.csv of as many images as there are letters; r is a right answer."""
    header = "path,label,prediction,probability,correct,p:cat,p:dog"
    rows = [
        f"cat/{i}.jpg,cat,{'cat' if letter == 'r' else 'dog'},0.9,{str(letter == 'r').lower()},0,0"
        for i, letter in enumerate(right)
    ]
    (folder / "predictions.csv").write_text("\n".join([header, *rows]) + "\n")


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "transfer", tmp_path / "<scratch>"]
    for folder in folders:
        fabricate(folder, ("cat", "dog"))
    return folders


def page(runs: list[Path]) -> str:
    return write_report(runs[0], None, [read_run(run) for run in runs[1:]]).read_text()


def test_two_runs_are_told_apart_by_their_images(runs: list[Path]) -> None:
    answer(runs[0], "r" * 20 + "rrrrrrrrrw")
    answer(runs[1], "r" * 20 + "wwwwwwwwwr")
    text = page(runs)
    assert "On 30 images that both judged, this run is +26.7 points from" in text
    assert "it alone is right on 9, the other alone on 1," in text
    assert "2.1\u202f%" in text or "2.1\u00a0%" in text  # 2 (1 + 10) / 2^10
    assert "transfer is better." in text
    assert 'href="#beside"' in text
    assert "<scratch>" not in text
    assert text.count(plain("&lt;scratch&gt;")) >= 3


def test_a_difference_that_may_be_chance_is_called_so(runs: list[Path]) -> None:
    answer(runs[0], "rrrrw")
    answer(runs[1], "rwwrr")
    text = page(runs)
    assert "it alone is right on 2, the other alone on 1," in text
    assert "cannot be told apart" in text


def test_runs_on_other_images_are_not_compared(runs: list[Path]) -> None:
    answer(runs[0], "rr")
    (runs[1] / "predictions.csv").write_text("path,label,prediction,probability,correct\n")
    assert "no image is in both" in page(runs)


def test_alone_there_is_no_such_part(runs: list[Path]) -> None:
    assert "beside" not in page(runs[:1]).split("<main>")[0].split("<nav>")[1]


def test_a_run_without_results_is_refused(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (runs[1] / "evaluation.json").unlink()
    assert main(["report", str(runs[0]), "--beside", str(runs[1])]) == 2
    assert "has no evaluation.json" in capsys.readouterr().err
    write_json(runs[1] / "evaluation.json", json.loads((runs[0] / "evaluation.json").read_text()))
    assert main(["report", str(runs[0]), "--beside", str(runs[1])]) == 0
