"""The page of a run without classes: its own sections, its pictures, and what it says of little."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from patchwords.report.page import write_report

NASTY = "</style><script>alert(1)</script>.png"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "masked").mkdir()
    for number, size in enumerate(((8, 8), (131, 67))):
        for name in ("image", "given", "predicted"):
            picture = Image.new("RGB", size, (90, 40 * number, 7))
            picture.save(tmp_path / "masked" / f"{number}-{name}.png")
    write(tmp_path)
    (tmp_path / "config.yaml").write_text("objective: masked\nlr: 0.001\n")
    (tmp_path / "environment.json").write_text("{}")
    data = {"source": "x", "kind": "folder", "classes": [], "notes": []}
    data["splits"] = {"train": {"images": 1500}, "validation": {"images": 41}}
    (tmp_path / "data.json").write_text(json.dumps(data))
    row = {"kind": "train", "step": 1, "loss": 6.2, "accuracy": 0.1, "lr": 0.001}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


def write(folder: Path, **changes: object) -> None:
    pictures = [
        {
            "path": NASTY if number == 0 else "plain.png",
            "accuracy": 0.375,
            **{name: f"masked/{number}-{name}.png" for name in ("image", "given", "predicted")},
        }
        for number in range(2)
    ]
    results = {
        "split": "validation",
        "images": 41,
        "loss": 2.125,
        "accuracy": 0.4567,
        "baseline": 0.3123,
        "target": "small-patch",
        "mask_ratio": 0.5,
        "patches": 49,
        "corrupted": 24,
        "model": "ViT-S/16",
        "parameters": 21_670_000,
        "macs": 4_600_000_000,
        "image_size": [112, 112],
        "pictures": pictures,
        "skipped": [{"path": "torn.jpg", "reason": "truncated"}],
    }
    (folder / "masked.json").write_text(json.dumps(results | changes))


def page(folder: Path) -> str:
    return write_report(folder).read_text()


def test_it_says_what_was_hidden_and_how_much_was_right(folder: Path) -> None:
    text = page(folder).replace("\N{NO-BREAK SPACE}", " ")
    for words in (
        "45.7",
        "Always the most frequent colour: 31.2 %",
        "24 of 49 patches",
        "cells of the hidden patches",
        "1,541 images in no classes",
        "torn.jpg",
        "37.5 % right",
        "ViT-S/16",
    ):
        assert words in text, words
    assert "is incomplete" not in text
    assert "Confusion" not in text
    assert 'href="#patches"' in text


def test_pictures_are_inside_with_words_for_those_who_do_not_see_them(folder: Path) -> None:
    text = page(folder)
    assert text.count("data:image/png;base64,") == 6
    assert text.count('class="tiny"') == 3  # hard pixels for the small ones alone
    assert 'alt="plain.png: the prediction"' in text
    assert "<script>" not in text
    assert write_report(folder).read_text() == text


def test_what_has_not_learned_is_told(folder: Path) -> None:
    assert "it has not learned yet" not in page(folder)
    write(folder, accuracy=0.3)
    assert "it has not learned yet" in page(folder)


def test_lost_pictures_and_results_are_told(folder: Path) -> None:
    (folder / "masked" / "0-given.png").unlink()
    assert page(folder).count("data:image/png;base64,") == 3
    (folder / "masked" / "1-image.png").unlink()
    assert "The pictures in masked/ are missing." in page(folder)
    (folder / "masked.json").write_text('{"images": 3}')
    text = page(folder)
    assert "masked.json cannot be read (it has no accuracy" in text
    assert "No held-out results yet" in text
