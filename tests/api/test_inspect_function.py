"""`pw.inspect`: the numbers, arrays and figures of the command, as an object."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_stage import draw

import patchwords as pw
from patchwords.cli import main
from patchwords.errors import ConfigError
from patchwords.report import inspection as parts

FEW: dict[str, Any] = {"photos": 2, "distance_images": 3, "truth_images": 3, "layers": [-1, 0]}


@pytest.fixture(autouse=True)
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the filters alone: figures take most of the time."""
    for name in (
        *("position_similarity", "attention_maps", "head_maps", "attention_distance"),
        *("token_similarity", "faithfulness", "patch_components", "patch_similarity"),
    ):
        monkeypatch.setattr(parts, f"draw_{name}", lambda *_: {})


def test_an_inspection_is_that_of_the_command(run: pw.Run, photos: Path) -> None:
    inspection = pw.inspect(run, photos, class_name="red", query=(1, 2), **FEW)
    words = ["inspect", run.folder, photos, "--class-name", "red", "--query", 1, 2, "--photos", 2]
    words += ["--distance-images", 3, "--truth-images", 3, "--layers", -1, 0, "--output", "look"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([str(word) for word in [*words, "--json"]]) == 0
    assert json.loads(out.getvalue()) == json.loads(json.dumps(inspection.to_dict()))
    assert inspection.save("saved") == Path("saved")
    for name in ("results.json", "filters.png", "filters.svg"):
        assert Path("saved", name).read_bytes() == Path("look", name).read_bytes()
    arrays = np.load("look/arrays.npz")
    assert inspection.arrays.keys() == set(arrays.files)
    assert inspection.arrays["rollout"].shape == (2, 4, 4)
    np.testing.assert_array_equal(inspection.arrays["rollout"], arrays["rollout"])
    assert inspection["truth"]["images"] == 3
    with pytest.raises(ConfigError, match="--output saved exists"):
        inspection.save("saved")


def test_an_inspection_shows_itself(run: pw.Run, photos: Path) -> None:
    inspection = pw.inspect(run.pretrained, [draw("red", 1), np.asarray(draw("blue", 2))], **FEW)
    assert [row["path"] for row in inspection["photos"]] == ["image 1", "image 2"]
    shown = inspection._repr_html_()
    assert shown.count("<table>") == shown.count('src="data:image/png;base64,') == 1
    for text in (repr(inspection), shown):
        assert f"inspection of {run.folder}" in text
        assert "do the maps explain the predictions? over 2 images" in text
    single = pw.inspect(run, draw("red", 1), **FEW)
    assert single["photos"][0] == inspection["photos"][0]
    alone = pw.inspect(run)
    assert set(alone.to_dict()) == {"model", "left_out", "filters", "positions"}


def test_the_page_and_the_nearest_images(run: pw.Run, photos: Path) -> None:
    inspection = pw.inspect(
        run, photos / "red" / "00.png", explore="page.html", nearest=(), cache="none", **FEW
    )
    assert inspection.page == Path("page.html")
    assert inspection.page.is_file()
    assert inspection["nearest"]["photos"][0]["nearest"][0]["path"].endswith(".png")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"photo": 2}, "unknown setting 'photo'; did you mean 'photos'"),
        ({"photos": 0}, "--photos 0 must be at least 1"),
        ({"baseline": "blurr"}, "--baseline 'blurr' is not a choice; did you mean 'blur'"),
        ({"layers": [9]}, "layer 9 does not exist"),
        ({"class_name": "rad"}, "did you mean 'red'"),
        ({"images": (), "query": (0, 0)}, "--query needs images"),
        ({"explore": "page.txt"}, "let its name end in .html"),
        ({"nearest_k": 3}, "--nearest-... and --cache need --nearest"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_settings_are_named(
    settings: dict[str, Any], message: str, run: pw.Run, photos: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        pw.inspect(run, **{"images": photos, "output": "look", **settings})
    assert message in str(caught.value)
    assert not Path("look").exists()
