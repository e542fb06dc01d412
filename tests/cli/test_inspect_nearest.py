"""`patchwords inspect SRC IMAGES --nearest DATA`: what it finds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from patchwords import save_pretrained
from patchwords.cli import main
from patchwords.data.dataset import ALL, TEST, TRAIN
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import write_splits
from patchwords.device import choose_device
from patchwords.evaluation.predictions import load_model_on_device
from patchwords.evaluation.probes.cache import FeaturePass
from patchwords.evaluation.probes.features import extract_example_features
from patchwords.models.zoo import create_model
from patchwords.report import inspection as parts
from patchwords.report import nearest
from patchwords.report.figures import insight as figure

CLASSES = ("disc", "square")
Ask = Callable[..., Any]


def paint(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, models, training images by class. To be read only."""
    folder = tmp_path_factory.mktemp("nearest")
    for i in range(3):
        paint(folder / "photos" / f"{i}.png", i)
    for i in range(7):
        paint(folder / "data" / "train" / CLASSES[i % 2] / f"{i}.png", 100 + i)
    for i in range(4):
        for data in ("data", "held-out"):
            paint(folder / data / "test" / CLASSES[i % 2] / f"{i}.png", 200 + i)
    (folder / "empty").mkdir()
    (folder / "head.csv").write_text("path,label\n")
    (folder / "test.csv").write_text("path,label,split\nphotos/0.png,disc,test\n")
    (folder / "broken.png").write_bytes(b"no image")
    for name in CLASSES:
        (folder / "torn" / name).mkdir(parents=True)
        (folder / "torn" / name / "a.png").write_bytes(b"no image")
    preprocess = Preprocess((12, 16), crop_fraction=1.0)
    for name, special in {"vit": {}, "pooling": {"mixer": "pooling"}}.items():
        settings = {"depth": 1, "image_size": (12, 16), "num_classes": 2}
        model = create_model("ViT-mu/4", **settings, **special)
        torch.nn.init.normal_(model.head.linear.weight, generator=torch.Generator().manual_seed(0))
        save_pretrained(model, folder / name, labels=CLASSES, preprocess=preprocess)
    resnet = create_model("BiT-R50x1", units=(1, 1, 1, 1), image_size=32, num_classes=2)
    save_pretrained(resnet, folder / "resnet", labels=CLASSES, preprocess=Preprocess((32, 32)))
    return folder


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Ask:
    """Runs it, by default into tmp_path/out with a cache aside; -> results, or the error line."""
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path / "cache"))

    def run(*words: object, code: int = 0, output: bool = True) -> Any:
        words = (*words, "--device", "cpu", "--workers", 0, "--distance-images", 1)
        words = (*words, "--truth-images", 0, "--json")
        if output:
            words = (*words, "--output", tmp_path / "out", "--overwrite")
        assert main(["inspect", *map(str, words)]) == code
        found = capsys.readouterr()
        if found.out:
            return json.loads(found.out), found.err
        assert found.err.count("\n") == 1, found.err
        return found.err

    return run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the figure was asked to show; figures take most of the time."""
    shown: list[Any] = []

    def keep(companies: Any, searched: Any) -> dict[str, bytes]:
        shown[:] = [companies, searched]
        return {}

    monkeypatch.setattr(nearest, "draw_nearest_images", keep)
    for name in (
        "filter_components",
        "position_similarity",
        "attention_maps",
        "head_maps",
        "attention_distance",
        "token_similarity",
        "patch_components",
        "patch_similarity",
    ):
        monkeypatch.setattr(parts, f"draw_{name}", lambda *_: {})
    return shown


def test_the_nearest_by_plain_numpy(
    place: Path, ask: Ask, drawn: list[Any], tmp_path: Path
) -> None:
    found, _ = ask(place / "vit", place / "photos", "--nearest", place / "data", "--nearest-k", 3)
    subject = load_model_on_device(str(place / "vit"), choose_device("cpu", "fp32"), 0)
    train = open_data(str(place / "data")).splits[TRAIN]
    photos = open_data(str(place / "photos"), need_labels=False).splits[ALL]
    rows = []
    for examples in (photos, train):
        values = extract_example_features(
            subject.model, examples, subject.preprocess, subject.device, 0
        ).values
        values = values.astype(np.float64)
        rows.append(values / np.linalg.norm(values, axis=1, keepdims=True))
    every = rows[0] @ rows[1].T
    order = np.argsort(-every, axis=1)[:, :3]
    nearest = found["nearest"]
    for i, photo in enumerate(nearest["photos"]):
        assert Path(photo["path"]).name == f"{i}.png"
        assert [one["path"] for one in photo["nearest"]] == [train.keys[j] for j in order[i]]
        labels = [train.classes[train.labels[j]] for j in order[i]]
        assert [one["label"] for one in photo["nearest"]] == labels
        assert [one["similarity"] for one in photo["nearest"]] == pytest.approx(
            every[i, order[i]].tolist(), abs=1e-4
        )
    assert (nearest["images"], nearest["of"], nearest["skipped"], nearest["k"]) == (7, 7, 0, 3)
    assert nearest["origin"] == "the training split"
    assert nearest["by_chance"] is not None
    arrays = np.load(tmp_path / "out" / "arrays.npz")
    np.testing.assert_allclose(
        arrays["nearest_similarity"], np.take_along_axis(every, order, 1), atol=1e-6
    )
    assert arrays["nearest_places"].tolist() == order.tolist()
    assert "rollout" in arrays.files  # all the rest is there, too
    companies, _ = drawn  # the pictures are those of the neighbours
    for i, company in enumerate(companies):
        for j, near in zip(order[i], company.neighbours, strict=True):
            seen = np.asarray(Image.open(place / "data" / train.keys[j])) / 255
            np.testing.assert_allclose(near.picture, seen, atol=1e-6)


def test_a_second_call_computes_no_feature_of_the_training_images(
    place: Path, ask: Ask, drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = place / "vit", place / "photos", "--nearest", place / "data"
    first, _ = ask(*words)
    asked: list[int] = []
    fill = FeaturePass.fill

    def filling(self: FeaturePass, *rest: Any) -> None:
        asked.append(len(self.examples))
        fill(self, *rest)

    monkeypatch.setattr(FeaturePass, "fill", filling)
    assert ask(*words)[0] == first
    assert asked == []
    few = ask(*words, "--nearest-images", 6)[0]["nearest"]
    assert asked == [6]
    assert (few["images"], few["of"]) == (6, 7)


def test_figures_and_a_line_on_the_screen(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A ResNet, which has no attention, finds them too."""
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path / "cache"))
    words = ["inspect", place / "resnet", place / "photos", "--nearest", place / "data"]
    words += ["--output", tmp_path / "out", "--device", "cpu", "--workers", 0]
    assert main([*map(str, words)]) == 0
    said = capsys.readouterr().out
    assert f"nearest to 3 photos among 7 images of {place / 'data'} (the training split)" in said
    assert f"left out: attention: {place / 'resnet'}: a ResNet has no patches" in said
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"nearest.png", "nearest.svg", "filters.png"} <= written
    assert not {"maps.png", "distance.png"} & written


@pytest.mark.usefixtures("drawn")
def test_a_model_without_attention_and_another_size(place: Path, ask: Ask) -> None:
    words = place / "pooling", place / "photos" / "1.png", "--nearest", place / "data"
    own, _ = ask(*words)
    assert "mixer 'pooling' has no attention" in own["left_out"]["attention"]
    assert "distance" not in own
    larger, _ = ask(*words, "--image-size", 24, 32)
    # the photo and the training images are both seen larger
    assert larger["nearest"]["photos"] != own["nearest"]["photos"]
    itself = place / "data" / "train" / "disc" / "0.png"
    found, _ = ask(*words[:1], itself, *words[2:], "--image-size", 24, 32)
    assert found["nearest"]["photos"][0]["nearest"][0]["path"] == "train/disc/0.png"
    assert found["nearest"]["photos"][0]["nearest"][0]["similarity"] == pytest.approx(1, abs=1e-4)


def test_of_fewer_images_all_are_shown(place: Path, ask: Ask, drawn: list[Any]) -> None:
    words = "--nearest", place / "data", "--nearest-k", 20, "--cache", "none"
    found, _ = ask(place / "vit", place / "photos", *words)
    assert (found["nearest"]["asked"], found["nearest"]["k"]) == (20, 7)
    assert "the 7 images (20 were requested)" in figure.format_nearest_caption(*drawn)


@pytest.mark.usefixtures("drawn")
def test_without_a_name_it_searches_what_the_run_trained_on(
    place: Path, ask: Ask, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "model").symlink_to(place / "vit")
    data = open_data(str(place / "data"))
    train = data.splits[TRAIN]
    parts = {TRAIN: train.select([0, 2, 3, 5]), TEST: train.select([1, 4, 6])}
    write_splits(run / "splits.csv", type(data)(data.source, data.kind, data.classes, parts))
    (run / "config.yaml").write_text(yaml.safe_dump({"data": str(place / "data")}))
    about = {"data": {"source": str(place / "data"), "kind": "folder"}}
    (run / "environment.json").write_text(json.dumps(about))
    found, _ = ask(run, place / "photos", "--nearest")
    assert found["nearest"]["origin"] == "those that the run trained on"
    seen = {near["path"] for photo in found["nearest"]["photos"] for near in photo["nearest"]}
    assert seen == {train.keys[i] for i in (0, 2, 3, 5)}
    # of the classes that it trained on
    (run / "config.yaml").write_text(yaml.safe_dump({"classes": ["disc"]}))
    assert ask(run, place / "photos", "--nearest")[0]["nearest"]["images"] == 3
    (run / "environment.json").write_text(json.dumps({"data": {"source": "hf:x", "kind": "hub"}}))
    said = ask(run, place / "photos", "--nearest", code=2)
    assert "hf:x is remote: give --nearest hf:x to fetch it" in said


@pytest.mark.usefixtures("drawn")
def test_photos_and_training_images_that_cannot_be_read(
    place: Path, ask: Ask, tmp_path: Path
) -> None:
    for i in range(3):
        paint(tmp_path / "some" / "disc" / f"{i}.png", i)
    (tmp_path / "some" / "disc" / "1.png").write_bytes(b"no image")
    words = "--nearest", tmp_path / "some"
    found, said = ask(place / "vit", place / "photos", place / "broken.png", *words, code=2)
    assert said.count("\n") == 1
    assert "broken.png" in said
    assert len(found["nearest"]["photos"]) == 3
    assert (found["nearest"]["images"], found["nearest"]["skipped"]) == (2, 1)
    firsts = [photo["nearest"][0]["path"] for photo in found["nearest"]["photos"]]
    assert (firsts[0], firsts[2]) == ("disc/0.png", "disc/2.png")  # the very images


NEAREST = ("--nearest", "data")
WRONG: dict[str, tuple[tuple[object, ...], str]] = {
    "no-photos": (("vit", *NEAREST), "--nearest needs images: give them after SRC"),
    "no-data": (("vit", "photos", "--nearest", "dtaa"), "dtaa: no such file or folder"),
    "empty": (("vit", "photos", "--nearest", "empty"), "empty"),
    "empty-list": (("vit", "photos", "--nearest", "head.csv"), "head.csv"),
    "no-train": (("vit", "photos", "--nearest", "held-out"), "has test/ but no train/"),
    "no-training": (("vit", "photos", "--nearest", "test.csv"), "has no training images to search"),
    "torn": (("vit", "photos", "--nearest", "torn"), "none of its training images can be read"),
    "two": (("vit", "photos", *NEAREST, "torn"), "give one source of data there"),
    "no-run": (("vit", "photos", "--nearest"), "does not record its training images"),
    "k": (("vit", "photos", *NEAREST, "--nearest-k", 21), "--nearest-k 21 must be from 1 to 20"),
    "no-k": (("vit", "photos", *NEAREST, "--nearest-k", 0), "--nearest-k 0 must be from 1 to 20"),
    "images": (("vit", "photos", *NEAREST, "--nearest-images", 0), "must be at least 1"),
    "k-alone": (("vit", "photos", "--nearest-k", 3), "need --nearest"),
    "cache-alone": (("vit", "photos", "--cache", "none"), "need --nearest"),
    "cache-size": (
        ("vit", "photos", *NEAREST, "--cache-size", 0),
        "--cache-size 0 must be more than 0 GiB",
    ),
    "column": (("vit", "photos", *NEAREST, "--nearest-image-column", "x"), "has no columns"),
    "resnet": (("resnet", "photos"), "with images those that are nearest in its features"),
    "layers": (("resnet", "photos", *NEAREST, "--layers", 0), "a ResNet has no patches"),
}


@pytest.mark.parametrize("case", WRONG)
def test_asked_wrongly(case: str, place: Path, ask: Ask, tmp_path: Path) -> None:
    words, line = WRONG[case]
    names = {"vit", "resnet", "photos", "data", "dtaa", "empty", "held-out", "torn"}
    names |= {"head.csv", "test.csv"}
    there = [place / str(word) if word in names else word for word in words]
    assert line in ask(*there, code=2)
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_page_has_no_place_for_them(place: Path, ask: Ask, tmp_path: Path) -> None:
    words = place / "vit", place / "photos", "--nearest", place / "data"
    page = tmp_path / "page.html"
    said = ask(*words, "--explore", page, code=2, output=False)
    assert "--nearest writes a figure and numbers: add --output FOLDER" in said
    # a page is of attention alone
    words = place / "resnet", place / "photos", "--nearest", place / "data", "--explore", page
    assert "a ResNet has no patches" in ask(*words, code=2)
    assert not page.exists()
    assert not (tmp_path / "out").exists()  # it is known before the work
