"""`patchwords inspect SRC IMAGES --explore PAGE`: what is on the page, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import patchwords as pw
from patchwords.cli import main
from patchwords.data.preprocess import Preprocess
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT
from patchwords.report.explorer import photos as explorer_photos

TINY = ViTConfig(
    patch_size=4, width=12, depth=2, heads=2, mlp_width=23, image_size=(12, 20), num_classes=2
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(tmp_path / "model", TINY)


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    """Three, of which two have the same name."""
    paths = [tmp_path / name for name in ("a/1.png", "b/1.png", "b/2.png")]
    for i, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (31, 47, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return [str(path) for path in paths]


def save(folder: Path, config: ViTConfig) -> str:
    size = config.image_size
    pw.save_pretrained(ViT(config), folder, labels=("a", "b"), preprocess=Preprocess(size))
    return str(folder)


def told(page: Path) -> dict[str, list[object]]:
    found = re.search(
        r'<script type="application/json" id="views">(.*?)</script>', page.read_text()
    )
    assert found
    return json.loads(found[1])


def test_photos_and_models_on_one_page(
    model: str, photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(tmp_path / "other", TINY.with_settings(depth=3, image_size=(8, 8)))
    page = tmp_path / "page.html"
    again = [*photos, photos[0]]  # a photo named twice is there once
    assert main(["inspect", model, *again, "--explore", str(page), "--beside", other]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(rf"page to open in a browser: {page} \(3 photos, 0\.\d MB\)\n", said)
    found = told(page)
    assert found["photos"] == photos  # two files are named 1.png: whole paths
    assert [str(name).split(" ")[0] for name in found["models"]] == [model, other]
    assert [view["layers"] for view in found["views"]] == [2] * 3 + [3] * 3  # type: ignore[index]
    assert [view["grid"] for view in found["views"]] == [[3, 5]] * 3 + [[2, 2]] * 3  # type: ignore[index]


def test_as_many_photos_as_fit(
    model: str,
    photos: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A photo has 2 x 2 x 16 x 16 weights."""
    monkeypatch.setattr(explorer_photos, "MAX_PHOTO_WEIGHTS", 2 * 1024)
    page = tmp_path / "page.html"
    assert main(["inspect", model, *photos, "--explore", str(page)]) == 0
    assert "2 photos of 3; more would make the page too large" in capsys.readouterr().out
    assert told(page)["photos"] == ["1.png", "2.png"]  # spread over them


def test_heads_and_size_are_for_all_models(
    model: str, photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(tmp_path / "other", TINY.with_settings(image_size=(8, 8)))
    page = tmp_path / "page.html"
    page.touch()
    words = ["--explore-heads", "mean", "--image-size", "8", "12", "--json", "--overwrite"]
    words += ["--beside", other]
    assert main(["inspect", model, *photos, "--explore", str(page), *words]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(page)}
    kept = [(view["kept"], *view["grid"]) for view in told(page)["views"]]  # type: ignore[index]
    assert kept == [(1, 2, 3)] * 6


def test_a_photo_that_cannot_be_read(
    model: str, photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(photos[1]).write_bytes(b"no image")
    page = tmp_path / "page.html"
    assert main(["inspect", model, *photos, "--explore", str(page)]) == 2
    assert photos[1] in capsys.readouterr().err
    assert len(told(page)["photos"]) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--explore", "{page}"], "--explore needs images: give them after SRC"),
        (["{photo}", "--explore", "{page}.pdf"], "let its name end in .html"),
        (["{photo}", "--explore", "{absent}/x.html"], "does not exist"),
        (["{photo}", "--explore", "{there}"], "exists; add --overwrite"),
        (["{photo}", "--explore", "{page}", "--beside", "{model}"], "give each model once"),
        (["{photo}", "--output", "{absent}", "--beside", "x"], "add --explore PAGE.html"),
        (["{photo}"], "--explore PAGE.html a page"),
    ],
)
def test_refused_in_one_line(
    model: str,
    photos: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    line: str,
) -> None:
    (tmp_path / "there.html").touch()
    places = {"page": tmp_path / "p.html", "absent": tmp_path / "absent", "model": model}
    places |= {"there": tmp_path / "there.html", "photo": photos[0]}
    assert main(["inspect", model, *(word.format(**places) for word in words)]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not (tmp_path / "p.html").exists()


def test_a_model_without_attention(
    model: str, photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(tmp_path / "other", TINY.with_settings(depth=3))
    pooling = save(tmp_path / "pooling", TINY.with_settings(mixer="pooling"))
    page = ["--explore", str(tmp_path / "p.html")]
    assert main(["inspect", pooling, photos[0], *page]) == 2
    assert f"{pooling}: mixer 'pooling' has no attention to show" in capsys.readouterr().err
    # of several models it says which
    words = ["inspect", model, photos[0], *page, "--beside", other, pooling]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"{pooling}: mixer 'pooling' has no attention to show" in error
    assert error.count("\n") == 1
    assert model not in error
    assert not (tmp_path / "p.html").exists()
