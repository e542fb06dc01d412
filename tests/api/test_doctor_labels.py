"""`patchwords doctor --labels`: a photo in the wrong folder is found, with page and table."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

import patchwords as pw
from patchwords.cli import main

MOVED = "blue/00.png"


@pytest.fixture
def mislabelled(photos: Path, tmp_path: Path) -> Path:
    """The photos, one of blue among those of red, one unreadable and a class of one image."""
    folder = tmp_path / "data"
    shutil.copytree(photos, folder)
    shutil.move(folder / MOVED, folder / "red" / "moved.png")
    (folder / "green" / "bad.png").write_bytes(b"no image")
    (folder / "rare").mkdir()
    shutil.copy(folder / "green" / "01.png", folder / "rare" / "one.png")
    return folder


def doctor(*words: object) -> int:
    return main(["doctor", *map(str, words), "--workers", "0"])


def test_a_photo_in_the_wrong_folder(
    run: pw.Run, mislabelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, cache = tmp_path / "labels", tmp_path / "cache"
    words = (mislabelled, "--labels", run.folder, "--cache", cache, "--device", "cpu")
    doctor(*words, "--output", output, "--json")
    found = json.loads(capsys.readouterr().out)["labels"]
    assert (found["images"], found["left_out"]) == (40, 2)
    assert found["suspects"][0]["path"] == "red/moved.png"
    assert found["suspects"][0]["suggested"] == "blue"
    assert found["suspects"][0]["suspicious"]
    assert found["accuracy"] > 0.8
    with (output / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert [rows[0][name] for name in ("rank", "path", "label", "suspicious")] == [
        *("1", "red/moved.png", "red", "true")
    ]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores)
    page = (output / "labels.html").read_text()
    assert page.count("<figure") == 40
    assert "red/moved.png" in page
    assert "<img" in page
    doctor(*words)
    out = capsys.readouterr().out
    assert "red/moved.png: labelled red, looks like blue" in out
    assert "2 images were not judged" in out
    assert "Add --output labels" in out


def test_what_is_refused(
    mislabelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, line in {
        ("--output", tmp_path / "out"): "need --labels",
        ("--labels", "a", "b"): "give one model",
        ("--labels", tmp_path / "nowhere"): "nowhere",
        ("--labels", "a", "--output", mislabelled): "exists; add --overwrite",
    }.items():
        assert doctor(mislabelled, *words) == 2
        assert line in capsys.readouterr().err, words


def test_a_class_has_nothing_to_be_compared_with(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos / "red", tmp_path / "one" / "red")
    assert doctor(tmp_path / "one", "--labels", "--cache", "none") == 2
    assert "fewer than two classes have two readable images" in capsys.readouterr().err
