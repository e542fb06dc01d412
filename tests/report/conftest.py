"""The run that the tests of the page look at: class names that would break careless HTML."""

from __future__ import annotations

from pathlib import Path

import pytest
from fabricated_run import NASTY, fabricate

from patchwords.data.dataset import ImageDataset


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, ImageDataset]:
    folder = tmp_path / "nasty"
    return folder, fabricate(folder, NASTY)
