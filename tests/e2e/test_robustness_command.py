"""`patchwords robustness` and `patchwords translation`, as a user calls them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from stage import COUNTS, call, done

import patchwords as pw
from patchwords.data.preprocess import Preprocess

HERE = ("--device", "cpu", "--workers", 0)
FEW = ("--only", "occlusion", "permutation", "--seeds", 2, *HERE)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another size, untrained, that knows the same classes in another order."""
    model = pw.create_model("ViT-mu/4", num_classes=len(COUNTS), image_size=12, seed=1)
    folder = tmp_path_factory.mktemp("models") / "other"
    labels = sorted(COUNTS, reverse=True)
    pw.save_pretrained(model, folder, labels=labels, preprocess=Preprocess((12, 12)))
    return folder


@pytest.fixture(scope="module")
def measured(
    run: Path, other: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("robust") / "out"
    done("robustness", run, other, photos, *FEW, "--output", folder)
    return folder


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())  # type: ignore[no-any-return]


def test_two_models_side_by_side_on_images_that_the_run_has_not_seen(
    run: Path, other: Path, photos: Path, measured: Path
) -> None:
    found = results(measured)
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert [model["name"] for model in found["models"]] == [str(run), str(other)]
    assert {row["images"] for row in found["rows"]} == {evaluation["images"]}
    clean = [p for p in found["points"] if p["level"] == 0 and p["model"] == str(run)]
    assert {point["mean"] for point in clean} == {evaluation["accuracy"]["value"]}
    assert found["unrecorded"] == [str(other)]
    assert found["split"] == "test"


def test_what_is_written(measured: Path) -> None:
    names = {path.name for path in measured.iterdir()}
    figures = {
        f"{family}.{kind}" for family in ("occlusion", "permutation") for kind in ("png", "svg")
    }
    assert names == {"results.json", "results.csv", *figures}
    found = results(measured)
    with (measured / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in found["rows"]]
    assert {row["seed"] for row in rows} == {"", "0", "1"}
    with Image.open(io.BytesIO((measured / "occlusion.png").read_bytes())) as image:
        assert image.width > image.height  # three panels in a row
    assert "ResNet-50 keeps 0.1 %" in found["disturbances"]["occlusion-random"]["published"]


def test_on_the_screen_and_as_json(run: Path, photos: Path, measured: Path) -> None:
    words = (run, photos, "--only", "occlusion-random", "--seeds", 1, "--images", 5, *HERE)
    out = done("robustness", *words)
    assert "Random patches dropped" in out
    assert "5 of " in out
    assert "each class by its share" in out
    answer = json.loads(done("robustness", *words, "--json"))
    assert [*answer["disturbances"]] == ["occlusion-random"]
    assert {row["images"] for row in answer["rows"]} == {5}
    assert [point["level"] for point in answer["points"]] == [*range(0, 101, 10)]


def test_another_models_saliency_and_another_grid(run: Path, other: Path, photos: Path) -> None:
    words = ("robustness", run, photos, "--only", "occlusion-salient", *HERE, "--json")
    own, others, coarse = (
        json.loads(done(*words, *more)) for more in ((), ("--saliency", other), ("--grid", 2))
    )
    assert str(other) in others["disturbances"]["occlusion-salient"]["title"]
    assert others["saliency"] == str(other)
    assert (own["grid"], coarse["grid"]) == (None, 2)
    # 30 % of four patches is one, as is 40 %
    accuracy = {row["level"]: row["accuracy"] for row in coarse["rows"]}
    assert accuracy[30] == accuracy[40]
    assert accuracy[20] == accuracy[0]


def test_an_output_is_not_written_over_unasked(run: Path, photos: Path, measured: Path) -> None:
    words = ("robustness", run, photos, "--only", "permutation", *HERE, "--output", measured)
    assert "exists; add --overwrite" in call(*words).error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("RUN",), "takes MODEL [MODEL ...] DATA, found"),
        ((), "takes MODEL [MODEL ...] DATA, found none"),
        (("RUN", "DATA", "--seeds", 0), "--seeds 0 must be at least 1"),
        (("RUN", "DATA", "--grid", 0), "--grid 0 must be at least 1 patch"),
        (("RUN", "DATA", "--grid", 99, "--only", "occlusion"), "--grid 99: images of 16x16 pixels"),
        (("RUN", "DATA", "--images", 0), "--images 0: it is a number of images"),
        (("RUN", "DATA", "--only", "oclusion"), "'oclusion'; did you mean 'occlusion'?"),
        (("RUN", "RUN", "DATA"), "is named twice"),
        (("RUN", "digits"), "is not one of the model's"),
    ],
)
def test_bad_input_is_one_line(
    words: tuple[Any, ...], message: str, run: Path, photos: Path
) -> None:
    named = {"RUN": run, "DATA": photos}
    assert message in call("robustness", *(named.get(word, word) for word in words), *HERE).error


def test_a_model_without_classes_is_refused(photos: Path, tmp_path: Path) -> None:
    model = pw.create_model("ViT-mu/4", num_classes=1, image_size=16)
    pw.save_pretrained(model, tmp_path / "bare", labels=())
    error = call("robustness", tmp_path / "bare", photos, *HERE).error
    assert "pre-trained without classes" in error
    # but its features can be moved
    done("translation", tmp_path / "bare", photos, "--images", 3, "--shifts", 1, *HERE)


def test_translation_writes_and_says(run: Path, other: Path, photos: Path, tmp_path: Path) -> None:
    words = (run, other, photos, "--images", 7, *HERE)
    out = done("translation", *words, "--output", tmp_path / "moved")
    assert "shift, pixels" in out
    found = results(tmp_path / "moved")
    assert {path.name for path in (tmp_path / "moved").iterdir()} == {
        *("results.json", "results.csv", "translation.png", "translation.svg")
    }
    # as far as the largest patch, of 4 pixels, where the stem is exact
    assert {row["pixels"] for row in found["rows"]} == {1, 2, 3, 4}
    stem = [row["error"] for row in found["rows"] if row["place"] == "stem" and row["pixels"] == 4]
    assert len(stem) == 4
    assert max(stem) < 1e-5  # float32
    answer = json.loads(done("translation", *words, "--json", "--shifts", 2))
    assert {row["pixels"] for row in answer["rows"]} == {1, 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shifts", 0), "--shifts 0 must be at least 1 pixel"),
        (("--shifts", 16), "a shift by 16 pixels: "),
    ],
)
def test_wrong_shifts_are_one_line(
    words: tuple[Any, ...], message: str, run: Path, photos: Path
) -> None:
    assert message in call("translation", run, photos, *words, *HERE).error
