"""One fabricated data set and one finished run over it, made through the public functions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import patchwords as pw

COUNTS = {"blue": 14, "green": 13, "red": 13}
TINY = {
    "model": "ViT-mu/4",
    "image_size": 16,
    "steps": 3,
    "batch_size": 8,
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
}


def draw(name: str, number: int) -> Image.Image:
    """A noisy ground with one bright channel; no two are alike."""
    random = np.random.default_rng([sorted(COUNTS).index(name), number])
    pixels = random.integers(0, 90, (24, 24 + number % 3, 3), dtype=np.uint8)
    pixels[4:20, 4:20, ("red", "green", "blue").index(name)] += 150
    return Image.fromarray(pixels)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 photos of three classes. To be read only."""
    root = tmp_path_factory.mktemp("data") / "photos"
    for name, count in COUNTS.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            draw(name, number).save(root / name / f"{number:02d}.png")
    return root


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be written where the tests happen to be started."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    assert not os.listdir()
