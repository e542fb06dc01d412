"""One fabricated data set and one finished run over it, made through the public functions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from api_stage import COUNTS, TINY, draw

import patchwords as pw


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


@pytest.fixture(scope="session")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> pw.Run:
    """A finished run over the photos, long enough to have learned. Its folder is to be read only."""
    longer = {"steps": 40, "lr": 0.01, "eval_every": 20}
    output = tmp_path_factory.mktemp("runs") / "shapes"
    return pw.finetune(photos, output=output, **TINY | longer)
