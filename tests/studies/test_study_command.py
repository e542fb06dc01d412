"""`patchwords study` and `patchwords studies` as a user calls them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_study import TINY

from patchwords.cli import main
from patchwords.studies import registry as table


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command that is refused says, in one line."""
    assert main([str(word) for word in words]) == 2
    found = capsys.readouterr()
    [line] = found.err.splitlines()
    return line.removeprefix("patchwords: ")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("head-typ", "unknown study 'head-typ'; did you mean 'head-type'?"),
        ("head-type", "--output is missing: give a folder for the results, such as runs/head-type"),
        ("head-type --output o", "head-type at scale mini needs CIFAR-10 (a folder with its"),
        ("head-type --output o --data gone", "gone"),
        ("head-type --output o --data digits --seeds 0", "--seeds 0 must be greater than 0"),
        ("head-type --output o --data digits --budget -3", "--budget -3 must be greater than 0"),
        ("head-type --output o --data digits --jobs 0", "--jobs 0 must be greater than 0"),
        ("head-type --output o --data digits --transfer x", "has no use for --transfer x"),
        (
            "head-type --scale full --output o --data digits",
            "is evaluated on ImageNet (ILSVRC-2012)",
        ),
        (
            "head-type --scale full --output o --data digits --transfer digits --budget 5",
            "is not trimmed, as its trainings take their length from a recipe",
        ),
        ("head-type --scale huge", "--scale 'huge' is not a choice"),
        ("head-type --scale full --plan --gpu h10", "h100"),
    ],
)
def test_a_wrong_word_is_one_line(
    words: str,
    wanted: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wanted in said(capsys, "study", *words.split())
    assert not (tmp_path / "o").exists()


def test_the_output_must_not_lie_in_the_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    line = said(
        capsys, "study", "head-type", "--data", tmp_path, "--output", tmp_path / "a" / "out"
    )
    assert "lies inside the data" in line


def test_the_list_says_what_each_asks_needs_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studies", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(table.STUDIES)
    positions = rows["position-embeddings"]["scales"]
    assert positions["mini"]["cells"] == 8
    # T 65, D 64, M 256, L 4: 4TD^2 + 2T^2D + 2TDM in each block, and patches of 4 x 4 x 3
    block = 4 * 65 * 64**2 + 2 * 65**2 * 64 + 2 * 65 * 64 * 256
    macs = 4 * block + 64 * 48 * 64 + 64 * 10
    assert positions["mini"]["training_flops"] == pytest.approx(
        3 * 8 * 6 * macs * 1500 * 64, rel=0.02
    )  # relative positions come on top
    assert positions["full"]["training_flops"] == pytest.approx(8 * 224e18, rel=0.02)
    assert main(["studies"]) == 0
    out = capsys.readouterr().out
    assert "head-type  Figure 9" in out
    assert "exaFLOPs" in out


def test_a_plan_names_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "head-type", "--scale", "full", "--plan"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "GAP, lr 0.0003" in out
    assert "device-days on NVIDIA H100 SXM at 40%" in out
    assert main([*words, "--json", "--seeds", "2"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["cells"]) == 3
    assert plan["device_days"] == pytest.approx(
        2 * sum(cell["device_days"] for cell in plan["cells"])
    )


def test_the_whole_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "load_study", lambda name: TINY)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})  # so that it has one thread
    words: list[Any] = ["study", "tiny", "--data", "digits", "--output", tmp_path / "a study"]
    words += ["--jobs", 1, "--device", "cpu", "--precision", "fp32"]
    assert main([str(word) for word in words]) == 0
    out = capsys.readouterr().out
    assert "cannot tell at this scale: positions help" in out
    folder = tmp_path / "a study"
    results = json.loads((folder / "results.json").read_text())
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["none", "1-D"]
    assert float(rows[0]["accuracy"]) == results["cells"][0]["accuracy"]
    page = (folder / "page.md").read_text()
    assert f"patchwords study tiny --scale mini --data digits --output '{folder}'" in page
    assert (folder / "tiny.svg").is_file()
    assert "data:image/png;base64," in (folder / "page.html").read_text()
    # nothing is left to do; all is written again, the same
    assert main([str(word) for word in [*words, "--json"]]) == 0
    assert json.loads(capsys.readouterr().out) == results
