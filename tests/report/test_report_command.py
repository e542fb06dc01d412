"""patchwords report: rewrites the page, with pictures only where the data is still the run's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fabricated_run import fabricate, write_json
from PIL import Image

from patchwords.cli.inspect.report import ReportCommand, run_report
from patchwords.data.open import open_data
from patchwords.data.splits import fingerprint_dataset
from patchwords.errors import DataError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of three photos, and a run over them."""
    folder = tmp_path / "photos"
    keys = []
    for i, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for j in range(3):
            path = folder / name / f"{j}.png"
            Image.fromarray(np.full((17, 19, 3), 40 * i + 11 * j, np.uint8)).save(path)
            keys.append(f"{name}/{j}.png")
    fabricate(tmp_path / "run", ("cat", "dog"))
    rows = [f"{key},{key[:3]},cat,0.900000,{str(key[0] == 'c').lower()},0.9,0.1" for key in keys]
    header = "path,label,prediction,probability,correct,p:cat,p:dog"
    (tmp_path / "run/predictions.csv").write_text("\n".join([header, *rows]) + "\n")
    path = tmp_path / "run/environment.json"
    environment = json.loads(path.read_text())
    seen = {"source": str(folder), "fingerprint": fingerprint_dataset(open_data(str(folder)))}
    write_json(path, {**environment, "data": seen})
    return folder


def test_the_page_is_written_with_pictures(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photos.parent / "run"
    assert run_report(ReportCommand(str(folder))) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text().count("data:image/png") == 6


@pytest.mark.parametrize("change", ["another image", "gone"])
def test_other_data_gives_no_pictures_and_says_so(
    photos: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if change == "gone":
        photos.rename(photos.parent / "elsewhere")
    else:
        Image.new("RGB", (5, 5)).save(photos / "cat" / "new.png")
    folder = photos.parent / "run"
    assert run_report(ReportCommand(str(folder))) == 0
    assert "without pictures: " in capsys.readouterr().err
    page = (folder / "report.html").read_text()
    assert "the images were not available" in page
    assert "data:image" not in page


def test_no_run_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run folder"):
        run_report(ReportCommand(str(tmp_path / "nowhere")))


def test_the_command_loads_no_torch() -> None:
    code = (
        "import sys; from patchwords.cli.inspect import report; import patchwords.report.page; "
        "print({'torch', 'sklearn', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
