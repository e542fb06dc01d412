"""The section on what a model learned: what is drawn, what is said, and that it costs no report."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fabricated_run import NASTY, write_json
from PIL import Image
from test_page import Page

from patchwords.data.dataset import ImageDataset
from patchwords.report.page import render_report
from patchwords.report.run_data import read_run_data
from patchwords.report.sections.predictions import RunImages

Given = tuple[Path, ImageDataset]
SHARES = {"rows": 0.31, "columns": 0.23, "rows_and_columns": 0.57, "distance": 0.71}
BESIDE = {"mean": 0.125, "standard_error": 0.01, "low": 0.0625, "high": 0.1875, "truer": True}
NOT_TOLD = BESIDE | {"low": -0.0625, "truer": False}


def insight() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Of a model of 2 layers of 3 heads and a grid of 2x3 patches, all parts there"""
    random = np.random.default_rng(0)
    results: dict[str, Any] = {
        "left_out": {},
        "images": True,
        "image_size": [14, 21],
        "beginning": {"words": "the <i>initial</i> weights", "there": True},
        "filters": {
            "of": "patch embedding",
            "filters": 31,
            "explained": [0.25] * 3,
            "explained_before": [0.125] * 3,
            "moved": 0.4321,
        },
        "positions": {
            "offsets": False,
            "learned": True,
            "layers": [0],
            "grid": [2, 3],
            "rows": [0, 1],
            "columns": [0, 1, 2],
            "explained": [SHARES],
            "explained_before": [SHARES | {"rows": 0.07}],
        },
        "distance": {
            "images": 41,
            "pixels": [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]],
            "standard_error": [[0.1] * 3, [0.2] * 3],
            "uniform": 9.5,
        },
        "maps": {"paths": [f"{NASTY[0]}/0.jpg", "gone.jpg"], "class_token": True},
        "truth": {
            "images": 13,
            "maps": {
                "rollout": {"beside_random": BESIDE},
                "gradient rollout": {"beside_random": NOT_TOLD},
                "random": {},
            },
        },
    }
    arrays = {
        "filters": np.array([[[[1.0, -1, 0]]], [[[0, 0.5, 1]]], [[[1, 0, 0]]]]),
        "filters_before": random.normal(size=(3, 1, 1, 3)),
        "positions": random.uniform(-0.5, 1, size=(1, 2, 3, 2, 3)),
        "positions_before": random.uniform(-0.5, 1, size=(1, 2, 3, 2, 3)),
        "maps": random.uniform(size=(2, 2, 3)),
        "photos": random.integers(0, 256, size=(2, 14, 21, 3), dtype=np.uint8),
    }
    for kind in ("deletion", "insertion"):
        for name in ("rollout", "gradient rollout", "random"):
            arrays[f"{kind}_{name}"] = random.uniform(0.1, 0.4, size=(13, 11))
    return results, arrays


def put(folder: Path, results: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    write_json(folder / "insight.json", results)
    np.savez_compressed(folder / "insight.npz", **arrays)


def page(run: Given) -> Page:
    return Page(render_report(read_run_data(run[0]), RunImages.from_dataset(run[1])))


def the_section(page: Page) -> str:
    found = re.search(r'<section [^>]*id="learned".*?</section>', page.html, re.S)
    assert found is not None
    return found.group(0)


def pictures(section: str) -> list[np.ndarray]:
    """RGBA, one after the other"""
    sources = re.findall(r"data:image/\w+;base64,([^\"]+)", section)
    return [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(s))).convert("RGBA")) for s in sources
    ]


def test_a_run_at_which_nobody_looked_has_no_such_section(run: Given) -> None:
    assert "learned" not in {attributes.get("id") for _, attributes in page(run).tags}
    assert "#learned" not in page(run).html
    assert "insight" not in page(run).html  # nor is it missed


def test_everything_is_drawn_and_linked_after_the_mistakes(run: Given) -> None:
    put(run[0], *insight())
    found = page(run)
    ids = [attributes.get("id") for tag, attributes in found.tags if tag == "section"]
    assert ids.index("mistakes") < ids.index("learned") < ids.index("data")
    links = [attributes["href"] for tag, attributes in found.tags if tag == "a"]
    assert links.index("#learned") == links.index("#mistakes") + 1
    for words in (
        "The trained model compared with its initial weights: the <i>initial</i> weights.",
        "The first 3 principal components of the 31 filters of the patch embedding.",
        "The filters changed by 43.2 % of their length.",
        "At the start: 38 % of the variance",
        "After training: 75 % of the variance",
        "At the start: rows explain 7 % of the variance, columns 23 %",
        "After training: rows explain 31 % of the variance, columns 23 %, their sum 57 %, distance 71 %",
        "averaged over the patches of 41 held-out images of 14x21 pixels",
        "layer 1, head 2: 8 pixels, standard error 0.2",
        "Rollout: +0.125 (95 % interval +0.062 to +0.188): better than chance.",
        "Gradient rollout: +0.125 (95 % interval -0.062 to +0.188): not distinguishable from chance.",
        "over 13 held-out images",
        "from the class token",
        "gone.jpg",
    ):
        assert found.has(words), words
    section = the_section(found)
    assert "<i>initial" not in section
    assert len(re.findall("<circle", section)) == 6 + 2 * 3 * 11
    assert len(pictures(section)) == 8


def test_pictures_have_the_numbers_in_them(run: Given) -> None:
    results, arrays = insight()
    put(run[0], results, arrays)
    _, filters, _, positions, photo, seen, *_ = pictures(the_section(page(run)))
    assert filters.shape == (1, 5, 4)  # three filters of one pixel, and two gaps
    assert filters[0, 0].tolist() == [255, 0, 128, 255]
    assert filters[0, 1, 3] == 0  # a gap is transparent
    assert positions.shape == (5, 11, 4)
    assert (positions[2, :, 3] == 0).all()
    brightest = np.unravel_index(arrays["positions"][0, 0, 0].argmax(), (2, 3))
    tile = positions[:2, :3, :3].astype(int).sum(-1)
    assert np.unravel_index(tile.argmax(), tile.shape) == brightest
    np.testing.assert_array_equal(photo[..., :3], arrays["photos"][0])
    row, column = np.unravel_index(arrays["maps"][0].argmax(), (2, 3))
    patch = np.s_[row * 7 : row * 7 + 7, column * 7 : column * 7 + 7, :3]
    np.testing.assert_array_equal(seen[patch], photo[patch])  # the brightest patch is as it was


def test_an_answer_is_right_or_wrong_as_predictions_say(run: Given) -> None:
    results, arrays = insight()
    rows = read_run_data(run[0]).predictions
    wrong = next(row for row in rows if row.correct is False)
    right = next(row for row in rows if row.correct)
    results["maps"]["paths"] = [wrong.path, right.path]
    put(run[0], results, arrays)
    strips = the_section(page(run)).split('class="gaze"')[1:3]
    assert "wrong: is" in strips[0]
    assert "wrong" not in strips[1]


def test_without_a_beginning_only_the_end_is_shown(run: Given) -> None:
    results, arrays = insight()
    results["beginning"] = {"words": "old, which cannot be read any more (gone)", "there": False}
    del results["filters"]["moved"], results["filters"]["explained_before"]
    del results["positions"]["explained_before"]
    kept = {name: array for name, array in arrays.items() if not name.endswith("_before")}
    put(run[0], results, kept)
    found = page(run)
    assert found.has("as its initial weights are gone: old, which cannot be read any more (gone).")
    assert "At the start" not in found.html
    assert "changed by" not in found.html
    assert len(pictures(the_section(found))) == 6


def test_what_was_left_out_is_named(run: Given) -> None:
    results, arrays = insight()
    for part in ("distance", "truth"):
        del results[part]
        results["left_out"][part] = "it would have <b>taken</b> too long"
    put(run[0], results, arrays)
    found = page(run)
    assert found.has("Attention distance: not shown, because it would have <b>taken</b> too long.")
    assert "<circle" not in the_section(found)


def test_a_look_that_failed_is_one_sentence(run: Given) -> None:
    put(run[0], {"error": "no <memory>"}, {})
    found = page(run)
    assert found.has("The analysis of the model failed: no <memory>.")
    assert found.has("Most confident mistakes")


@pytest.mark.parametrize("damage", ["json", "npz", "no npz", "keys", "shape"])
def test_damage_costs_no_report(run: Given, damage: str) -> None:
    results, arrays = insight()
    if damage == "keys":
        del results["filters"]["of"]
    if damage == "shape":
        results["distance"]["pixels"] = 3
    put(run[0], results, arrays)
    if damage == "json":
        (run[0] / "insight.json").write_text('{"left')
    if damage == "npz":
        (run[0] / "insight.npz").write_bytes(b"PK\x03\x04 torn")
    if damage == "no npz":
        (run[0] / "insight.npz").unlink()
    found = page(run)
    assert found.has("Most confident mistakes")
    damaged = damage in {"keys", "shape"}
    assert found.has("insight.npz is damaged" if damaged else "cannot be shown")


def test_written_twice_it_is_the_same(run: Given) -> None:
    put(run[0], *insight())
    assert page(run).html == page(run).html
    assert len(page(run).html) < 3_000_000
