"""A run beside others: the table, the curves, and what the difference is worth."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from fabricated_run import fabricate, write_json

from patchwords.cli import main
from patchwords.evaluation.metrics import wilson_interval
from patchwords.report.html import replace_surrogates
from patchwords.report.page import write_report
from patchwords.report.run_data import read_run_data


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
    return write_report(runs[0], None, [read_run_data(run) for run in runs[1:]]).read_text()


def test_two_runs_are_told_apart_by_their_images(runs: list[Path]) -> None:
    answer(runs[0], "r" * 20 + "rrrrrrrrrw")
    answer(runs[1], "r" * 20 + "wwwwwwwwwr")
    text = page(runs)
    assert (
        "on the 30 images that both evaluated: both right on 20, only &lt;scratch&gt; on 1," in text
    )
    assert "only this run on 9, neither on 0. The difference is +26.67 points for this run" in text
    assert "this run is ahead, by more than chance gives equal models in 95 of 100" in text
    assert "exact p 0.021, mid-p 0.012." in text  # 2 (1 + 10) / 2^10, 2 (1 + 10 / 2) / 2^10
    assert 'href="#beside"' in text
    assert "<scratch>" not in text
    assert text.count(replace_surrogates("&lt;scratch&gt;")) >= 3


@pytest.mark.parametrize("turned", [False, True])
def test_the_page_says_what_the_command_says(
    runs: list[Path], turned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rule, so one answer: the second of `compare` is the run that the page is of."""
    answer(runs[turned], "rrrrrrrwwrrrrrrrrwwrr")
    answer(runs[not turned], "rwwwrrrwwrwwwwrrrwrrw")
    assert main(["compare", str(runs[1]), str(runs[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["compare", str(runs[1]), str(runs[0])]) == 0
    said = capsys.readouterr().out
    text = unescape(page(runs))
    tests = found["mcnemar"]
    p = f"McNemar's exact p {tests['exact_p']:.2g}, mid-p {tests['mid_p']:.2g}"
    assert p in said
    assert p in text
    ends = (100 * found["difference"][f"accuracy{end}"] for end in ("", "_low", "_high"))
    value, low, high = (f"{end:+.2f}" for end in ends)
    assert f"{value} points for this run (95 % interval {low} to {high})" in text
    line = next(line for line in said.splitlines() if " is ahead, " in line)
    named = line.replace("B is", "this run is").replace("A is", "<scratch> is")
    assert named in text


def test_a_difference_that_may_be_chance_is_called_so(runs: list[Path]) -> None:
    answer(runs[0], "rrrrw")
    answer(runs[1], "rwwrr")
    text = page(runs)
    assert "only &lt;scratch&gt; on 1, only this run on 2," in text
    assert "this run is ahead, but equal models come as far apart by chance" in text
    assert "left out" not in text


def test_images_of_one_alone_are_counted(runs: list[Path]) -> None:
    answer(runs[0], "rrrrw")
    answer(runs[1], "rw")
    text = page(runs)
    assert "on the 2 images that both evaluated: both right on 1," in text
    assert "left out: 0 of &lt;scratch&gt; and 3 of this run." in text


def other_images(run: Path) -> None:
    """The same answers about images of other names."""
    path = run / "predictions.csv"
    path.write_text(path.read_text().replace("cat/", "elsewhere/").replace("dog/", "elsewhere/"))


def with_accuracy(run: Path, right: int, n: int) -> tuple[float, float, float]:
    path = run / "evaluation.json"
    shares = dict(
        zip(("value", "low", "high"), (right / n, *wilson_interval(right, n)), strict=True)
    )
    write_json(path, {**json.loads(path.read_text()), "accuracy": shares})
    return shares["value"], shares["low"], shares["high"]


def test_runs_on_other_images_have_the_interval_of_those(runs: list[Path]) -> None:
    """Newcombe 1998, 17:873, table II, contrast (a): 56/70 less 48/80, by his method 10."""
    with_accuracy(runs[0], 56, 70)
    with_accuracy(runs[1], 48, 80)
    other_images(runs[1])
    text = page(runs)
    assert (
        "no image was evaluated by both, so the runs are compared as if on different images" in text
    )
    assert "+20.00 points for this run (95 % interval +5.24 to +33.39)" in text
    assert "this run is ahead by more than chance; the same images" in text
    assert "McNemar" not in text


def test_a_run_that_is_behind_on_other_images_and_one_that_may_be(runs: list[Path]) -> None:
    other_images(runs[1])
    with_accuracy(runs[0], 48, 80)
    with_accuracy(runs[1], 56, 70)
    assert "&lt;scratch&gt; is ahead by more than chance" in page(runs)
    with_accuracy(runs[1], 49, 80)
    assert "which may be chance; the same" in page(runs)


def test_without_the_answers_the_images_are_not_known(runs: list[Path]) -> None:
    (runs[1] / "predictions.csv").unlink()
    assert "the evaluated images are not recorded, so the runs" in page(runs)


def test_runs_that_cannot_be_compared_say_why(runs: list[Path]) -> None:
    fabricate(runs[1], ("cat", "cow"))
    for _ in range(2):
        assert "only <scratch> knows 'cow'; only this run knows 'dog'" in unescape(page(runs))
        other_images(runs[1])
    fabricate(runs[1], ("dog", "cat"))
    path = runs[1] / "predictions.csv"
    path.write_text(path.read_text().replace("/", "s/"))
    shared = runs[0] / "predictions.csv"
    shared.write_text(shared.read_text().replace("cat/0.jpg", "dogs/0.jpg"))
    assert "they were not asked about the same data" in page(runs)
    path.write_text(path.read_text().replace(",cat,", ",cow,"))
    assert "do not fit: there is no 'cow'" in unescape(page(runs))
    (runs[1] / "evaluation.json").unlink()
    assert "as an accuracy is missing" in page(runs)


def test_images_without_a_label_are_left_aside(runs: list[Path]) -> None:
    answer(runs[0], "rrrrw")
    answer(runs[1], "rwwrr")
    for run in runs:
        path = run / "predictions.csv"
        path.write_text(path.read_text() + "cat/x.jpg,,dog,0.9,,0,0\n")
    assert "on the 5 images that both evaluated" in page(runs)


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
