"""One fabricated data set and one run over it, which all tests of the whole program share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from stage import TINY, done, make_photos


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 photos of three classes. To be read only."""
    return make_photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="session")
def run(one_thread: None, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over the photos, long enough to have learned. To be read only."""
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    longer = ("--steps", 60, "--lr", 0.01, "--crop-area", 0.7, 1, "--eval-every", 20)
    done("finetune", photos, *TINY, *longer, "--output", folder)
    return folder


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(run, tmp_path / run.name))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be written where the tests happen to be started."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    assert not os.listdir()
