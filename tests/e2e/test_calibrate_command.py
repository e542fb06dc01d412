"""`patchwords calibrate`, and int8 wherever a model is asked, as a user has it."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors
from PIL import Image
from stage import call, done, make_photos, snapshot

from patchwords.app.middleware import AppLimits
from patchwords.app.neighbours import NeighbourSearch
from patchwords.app.service import PredictionService, to_batch
from patchwords.app.upload import Upload
from patchwords.data.splits import read_splits
from patchwords.device import choose_device
from patchwords.evaluation import quantisation as rounding
from patchwords.evaluation.predictions import load_model_on_device
from patchwords.models.inference.int8 import find_int8_obstacle
from patchwords.models.zoo import create_model
from patchwords.weights.pretrained import RANGES_FILE
from patchwords.weights.store import save_pretrained

pytestmark = pytest.mark.skipif(
    find_int8_obstacle() is not None, reason=f"no int8 here: {find_int8_obstacle()}"
)


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured here is of no interest."""
    monkeypatch.setattr(rounding, "TIMING_SECONDS", 0.0)


@pytest.fixture
def calibrated(own_run: Path) -> Path:
    done("calibrate", own_run, "--workers", 0)
    return own_run


def test_ranges_and_what_int8_costs(own_run: Path, photos: Path) -> None:
    before = snapshot(own_run)
    found = json.loads(done("calibrate", own_run, "--images", 9, "--workers", 0, "--json"))
    after = snapshot(own_run)
    assert after.keys() - before.keys() == {f"model/{RANGES_FILE}"}
    assert all(after[name] == value for name, value in before.items())
    splits = list(read_splits(own_run / "splits.csv").values())
    assert found["calibrated_on"] == 9
    assert (found["split"], found["images"]) == ("test", splits.count("test"))
    assert found["trained_on"] is False
    assert found["ranges"] == str(own_run / "model" / RANGES_FILE)
    with safetensors.safe_open(found["ranges"], framework="pt") as file:
        assert file.metadata()["images"] == "9"
    rows = {row["precision"]: row for row in found["precisions"]}
    assert rows.keys() - {"bf16"} == {"fp32", "int8"}
    assert all(row["images_per_second"] > 0 for row in rows.values())
    evaluated = json.loads(done("evaluate", own_run, photos, "--json"))
    assert rows["fp32"]["accuracy"] == evaluated["accuracy"]["value"]
    in_int8 = json.loads(done("evaluate", own_run, photos, "--precision", "int8", "--json"))
    assert rows["int8"]["accuracy"] == in_int8["accuracy"]["value"]
    assert in_int8["precision"] == "int8"
    assert in_int8["loss"] != evaluated["loss"]  # it was not computed in float32


def test_what_is_said(own_run: Path, tmp_path: Path) -> None:
    out = done("calibrate", own_run, "--workers", 0)
    assert "less fp32" in out
    assert (
        f"ranges of {len(training(own_run))} training images: {own_run}/model/{RANGES_FILE}" in out
    )
    assert "images/s: the model alone, " in out
    assert f"next: patchwords predict {own_run} IMAGES --precision int8" in out
    assert "warning" not in out
    alone = Path(shutil.copytree(own_run / "model", tmp_path / "alone"))
    photos = make_photos(tmp_path / "photos", first=50)
    out = done("calibrate", alone, photos, "--images", 11, "--judged", 20, "--workers", 0)
    assert "warning: the training images of the model are not recorded" in out
    assert "measured on 20 images" in out
    # Data that nobody has divided: the images that the ranges are of are not judged.
    out = done("calibrate", alone, photos, "--workers", 0)
    assert "measured on 20 images" in out
    assert "ranges of 20 training images" in out


def test_images_that_cannot_be_read(run: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(run / "model", tmp_path / "alone"))
    photos = tmp_path / "photos"
    make_photos(photos / "train", first=50)
    make_photos(photos / "test", {"disc": 3, "square": 2})
    (photos / "train" / "disc" / "99.png").write_bytes(b"no picture")
    words = ("calibrate", alone, photos, "--workers", 0)
    assert "cannot be read" in call(*words, "--max-bad", 0).error
    assert not (alone / RANGES_FILE).exists()
    assert "ranges of 40 training images" in done(*words, "--max-bad", 0.1)


def training(run: Path) -> list[str]:
    splits = read_splits(run / "splits.csv")
    return [key for (key, _), split in splits.items() if split == "train"]


def test_ranges_are_of_training_images_alone(
    own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    from patchwords.cli.model import calibrate

    find = calibrate.find_activation_ranges

    def spy(config: calibrate.CalibrateCommand, source: object, seen: object) -> object:
        asked.append(list(seen.keys))  # type: ignore[attr-defined]
        return find(config, source, seen)  # type: ignore[arg-type]

    monkeypatch.setattr(calibrate, "find_activation_ranges", spy)
    for words in (("--images", 9), ("--images", 9), ("--images", 9, "--seed", 1)):
        done("calibrate", own_run, *words, "--workers", 0)
    assert set(asked[0]) <= set(training(own_run))
    assert len(set(asked[0])) == 9
    assert asked[0] == asked[1] != asked[2]


def test_predict_in_int8(calibrated: Path, photos: Path) -> None:
    words = ("predict", calibrated, photos, "--json", "--workers", 0)
    exact, rounded = (
        [json.loads(line)["predictions"] for line in done(*words, *more).splitlines()]
        for more in ((), ("--precision", "int8"))
    )
    same = [a[0]["label"] == b[0]["label"] for a, b in zip(exact, rounded, strict=True)]
    assert sum(same) >= 0.9 * len(same)
    assert exact != rounded


def test_the_page_answers_in_int8(calibrated: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    scores = {}
    for precision in ("fp32", "int8"):
        device = choose_device("cpu", precision)  # type: ignore[arg-type]
        loaded = load_model_on_device(str(calibrated), device, 0)
        service = PredictionService(loaded, NeighbourSearch(loaded, None), AppLimits())
        seen = service.decode(file.getvalue(), loaded.preprocess.image_size)
        scores[precision] = service.inference.scores(to_batch(seen), device)[0]
        shown = service.analyse_upload(Upload(file.getvalue(), {}))["predictions"][0]["score"]
        assert abs(shown - scores[precision].max()) < 1e-2
        service.close()
    assert 0 < abs(scores["int8"] - scores["fp32"]).max() < 0.1


def test_retrained_weights_need_new_ranges(calibrated: Path, own_run: Path, photos: Path) -> None:
    weights = calibrated / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(bytes(data))
    words = ("predict", calibrated, photos, "--precision", "int8")
    error = call(*words).error
    assert "is of other weights than the model has now" in error
    assert f"run patchwords calibrate {calibrated} again" in error
    done("calibrate", calibrated, "--workers", 0)
    assert call(*words, "--workers", 0).code == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["predict", "RUN", "PHOTOS"], "RUN has no ranges of activations, which int8 needs: run"),
        (["evaluate", "RUN", "PHOTOS"], "run patchwords calibrate RUN first"),
        (["app", "RUN", "--port", "0"], "run patchwords calibrate RUN first"),
        (["predict", "RUN", "PHOTOS", "--device", "cuda"], "--precision int8 is for the CPU"),
        (["predict", "x.onnx", "PHOTOS"], "int8 is not for x.onnx: give its run folder"),
        (["evaluate", "POOLING", "PHOTOS"], "this model has mixer 'pooling'"),
        (["predict", "patchwords:cifar10-small", "PHOTOS"], "run patchwords calibrate "),
        (["compare", "RUN", "POOLING", "PHOTOS"], "--precision 'int8' is not a choice"),
    ],
    ids=str,
)
def test_mistakes_with_int8_are_one_line(
    words: list[str], line: str, run: Path, photos: Path, tmp_path: Path
) -> None:
    mistaken([*words, "--precision", "int8"], line, run, photos, tmp_path)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["RUN", "--images", "0"], "--images 0 must be at least 1"),
        (["RUN", "--judged", "0"], "--judged 0 must be at least 1"),
        (["RUN", "nowhere"], "nowhere"),
        (["RUN", "digits"], "digits: class '0' is not one of the model's"),
        (["RUN", "BARE"], "has no label"),
        (["POOLING", "PHOTOS"], "this model has mixer 'pooling'"),
        (["ALONE"], "ALONE does not record its training images: give them"),
        (["patchwords:cifar10-small", "PHOTOS"], "ranges are stored next to the weights"),
    ],
    ids=str,
)
def test_mistakes_with_calibrate_are_one_line(
    words: list[str], line: str, run: Path, photos: Path, tmp_path: Path
) -> None:
    mistaken(["calibrate", *words], line, run, photos, tmp_path)


def mistaken(words: list[str], line: str, run: Path, photos: Path, tmp_path: Path) -> None:
    """The words are refused with the line, and leave nothing behind."""
    model = create_model("ViT-mu/4", num_classes=3, image_size=16, mixer="pooling")
    labels = ("disc", "square", "stripe")
    table = tmp_path / "bare.csv"
    shutil.copytree(photos, tmp_path / "copies")
    keys = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.png"))
    rows = [f"{key},{'' if number % 2 else key.parent.name}\n" for number, key in enumerate(keys)]
    table.write_text("path,label\n" + "".join(rows))
    named = {
        "RUN": Path(shutil.copytree(run, tmp_path / "run")),
        "ALONE": Path(shutil.copytree(run / "model", tmp_path / "alone")),
        "POOLING": save_pretrained(model, tmp_path / "pooling", labels=labels),
        "PHOTOS": photos,
        "BARE": table,
    }
    before = snapshot(tmp_path)
    for name in ("RUN", "ALONE"):
        line = line.replace(name, str(named[name]))
    assert line in call(*(named.get(word, word) for word in words)).error
    assert snapshot(tmp_path) == before
