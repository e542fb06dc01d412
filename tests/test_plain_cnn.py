"""The peer of the plain command and the crops it is measured on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from benchmarks import crop_cells, plain_cnn
from PIL import Image


def test_the_peer_has_the_stated_size_and_learns_two_colours() -> None:
    assert sum(p.numel() for p in plain_cnn.build_cnn(5).parameters()) == 98_325
    torch.manual_seed(0)
    labels = torch.arange(16) % 2
    side = plain_cnn.DECODED
    images = (labels * 200).byte().view(-1, 1, 1, 1).expand(-1, 3, side, side)
    model = plain_cnn.train(images, labels, classes=2, epochs=12)
    assert plain_cnn.measure_accuracy(model, images, labels) == 1.0


VOC = """<annotation>{}</annotation>"""
BOX = (
    "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>{}</xmax><ymax>10</ymax></bndbox></object>"
)


def test_cells_are_cut_as_the_photos_are_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "voc"
    for folder in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (source / folder).mkdir(parents=True)
    for split in crop_cells.SPLITS:
        (source / f"ImageSets/Main/{split}.txt").write_text(f"{split}-0\n")
        Image.new("RGB", (40, 30)).save(source / f"JPEGImages/{split}-0.jpg")
        boxes = BOX.format("RBC", 12) + BOX.format("WBC", 4)  # the second is too narrow
        (source / f"Annotations/{split}-0.xml").write_text(VOC.format(boxes))
    output = tmp_path / "cells"
    monkeypatch.setattr(sys, "argv", ["crop_cells", str(source), str(output)])
    crop_cells.main()
    written = sorted(path.relative_to(output).as_posix() for path in output.rglob("*.png"))
    assert written == [f"{split}/RBC/{split}-0-0.png" for split in sorted(crop_cells.SPLITS)]
    assert Image.open(output / written[0]).size == (12, 10)
    assert "train: 1 crops" in capsys.readouterr().out
