"""One fabricated data set and one finished run over it, made through the public functions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from api_stage import COUNTS, draw


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
