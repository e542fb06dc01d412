"""`patchwords inspect`: what it writes and says, and every way in which it can be asked wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from patchwords import save_pretrained
from patchwords.cli import main
from patchwords.data.dataset import subsample_evenly
from patchwords.models.zoo import create_model
from patchwords.report import inspection as parts
from patchwords.report.inspection import open_photos

Ask = Callable[..., str]
LABELS = ["disc", "square", "stripe"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and models. To be read only."""
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "photos").mkdir()
    for i in range(5):
        pixels = np.random.default_rng(i).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i}.png")
    settings = {"depth": 2, "image_size": (12, 16), "num_classes": 3}
    for name, special in {
        "vit": {},
        "plain": {"position": "none", "classifier": "gap"},
        "identity": {"mixer": "identity"},
        "axial": {"mixer": "axial", "position": "relative"},
    }.items():
        model = create_model("ViT-mu/4", **(settings | special))
        torch.nn.init.normal_(model.head.linear.weight)
        save_pretrained(model, folder / name, labels=LABELS)
    save_pretrained(
        create_model("ViT-mu/4", **(settings | {"num_classes": 1})), folder / "masked", labels=()
    )
    resnet = create_model("BiT-R50x1", units=(1, 1, 1, 1), image_size=32, num_classes=3)
    save_pretrained(resnet, folder / "resnet", labels=LABELS)
    (folder / "empty").mkdir()
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: object, code: int = 0) -> str:
        assert main(["inspect", *map(str, words), "--device", "cpu", "--workers", "0"]) == code
        found = capsys.readouterr()
        if code == 2 and not found.out:
            assert found.err.count("\n") == 1, found.err
            return found.err
        return found.out

    return run


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time; one test has them all."""
    for name in (
        "filter_components",
        "position_similarity",
        "attention_maps",
        "head_maps",
        "attention_distance",
        "token_similarity",
        "patch_components",
        "patch_similarity",
        "faithfulness",
    ):
        monkeypatch.setattr(parts, f"draw_{name}", lambda *_: {})


def test_all_of_it(place: Path, ask: Ask, tmp_path: Path) -> None:
    said = ask(
        *(place / "vit", place / "photos", "--output", tmp_path / "out", "--photos", 2),
        *("--distance-images", 3, "--truth-images", 4, "--layers", -1, 0, "--heads", 1),
        *("--query", 2, 3, "--class-name", "stripe"),
    )
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["distance"]["images"] == 3
    assert found["truth"]["images"] == 4
    assert np.shape(found["distance"]["pixels"]) == (2, 2)
    assert [Path(row["path"]).name for row in found["photos"]] == ["0.png", "4.png"]
    assert [row["explained"] for row in found["photos"]] == ["stripe"] * 2
    assert len(found["photos"][0]["predictions"]) == 3
    assert (found["heads"]["layers"], found["heads"]["heads"]) == ([1, 0], [1])
    assert found["left_out"] == {}
    assert list(found["truth"]["maps"]) == ["last layer", "rollout", "gradient rollout", "random"]
    for part in ("filters:", "positions:", "attention distance over 3 images", "over 4 images"):
        assert part in said
    arrays = np.load(tmp_path / "out" / "arrays.npz")
    shapes = {name: arrays[name].shape for name in arrays.files}
    assert shapes["rollout"] == shapes["last_layer"] == shapes["gradient_rollout"] == (2, 3, 4)
    assert shapes["photos"] == (2, 12, 16, 3)
    assert shapes["heads"] == (2, 1, 3, 4)
    assert shapes["attention_distance"] == (3, 2, 2)
    assert shapes["token_similarity"] == (3, 2, 3, 4)
    assert shapes["deletion_random"] == (4, 11)
    assert shapes["patch_colours"] == (2, 3, 4, 3)
    assert arrays["patch_similarity"][0, 2, 3] == pytest.approx(1)  # --query of the first photo
    assert found["patches"]["photos"][0]["patch"] == [2, 3]
    figures = {"filters", "positions", "maps", "heads", "distance", "tokens", "truth"}
    figures |= {"patches", "similar"}
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"results.json", "arrays.npz"} | {
        f"{name}.{kind}" for name in figures for kind in ("png", "svg")
    }
    assert (arrays["heads"][0] != arrays["heads"][1]).all()  # in the order asked for


@pytest.mark.usefixtures("undrawn")
def test_without_images_filters_and_positions(place: Path, ask: Ask, tmp_path: Path) -> None:
    found = json.loads(ask(place / "axial", "--output", tmp_path / "out", "--json"))
    assert set(found) == {"model", "left_out", "filters", "positions"}
    assert found["positions"]["offsets"]
    assert len(found["positions"]["explained"]) == 4


def test_a_resnet_shows_its_filters_and_says_the_rest(
    place: Path, ask: Ask, tmp_path: Path
) -> None:
    said = ask(place / "resnet", "--output", tmp_path / "out")
    assert "of the root convolution" in said
    assert "left out: positions: a ResNet has no patches" in said
    assert "positions.png" not in {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.usefixtures("undrawn")
def test_a_model_without_classes_has_no_answer_to_explain(
    place: Path, ask: Ask, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = json.loads(
        ask(
            place / "masked",
            place / "photos" / "3.png",
            "--output",
            out,
            "--json",
            "--image-size",
            8,
            20,
        )
    )
    assert set(found["left_out"]) == {"truth", "gradient rollout"}
    assert "predictions" not in found["photos"][0]
    assert found["distance"]["image_size"] == [8, 20]
    assert found["distance"]["standard_error"] == [[None] * 2] * 2  # of one image
    assert np.load(out / "arrays.npz")["rollout"].shape == (1, 2, 5)


@pytest.mark.usefixtures("undrawn")
def test_images_that_cannot_be_read_are_named(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [place / "plain", place / "broken.png", place / "photos", "--truth-images", 0]
    words += ["--output", tmp_path / "out", "--photos", 2, "--device", "cpu", "--workers", 0]
    assert main(["inspect", *map(str, words)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "broken.png" in said.err
    assert "left out: positions: position 'none'" in said.out
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert "truth" not in found
    assert len(found["photos"]) == 1  # it is not replaced by another


WRONG = {
    "resnet": (("resnet", "photos"), "a ResNet has no patches that attend to one another"),
    "identity": (("identity", "photos"), "mixer 'identity' has no attention to show"),
    "layer": (("vit", "photos", "--layers", 2), "layer 2 does not exist: this model has 2, 0 to 1"),
    "head": (("vit", "photos", "--heads", 9), "head 9 does not exist"),
    "query": (("vit", "photos", "--query", 3, 0), "patch 3 0 is not on the grid of 3x4"),
    "query-alone": (("vit", "--query", 0, 0), "--query needs images: give them after SRC"),
    "heads-alone": (("vit", "--heads", 0), "--heads needs images: give them after SRC"),
    "class": (("vit", "photos", "--class-name", "disk"), "did you mean 'disc'?"),
    "no-classes": (("masked", "photos", "--class-name", "disc"), "it was trained without any"),
    "smaller-than-a-patch": (
        ("vit", "photos", "--image-size", 3),
        "does not divide into patches of 4",
    ),
    "three-sizes": (("vit", "photos", "--image-size", 8, 8, 8), "one number, or height and width"),
    "no-pixels": (("vit", "photos", "--image-size", 0), "image_size must be a whole number from 1"),
    "empty": (("vit", "empty"), "no images in this folder, it is empty"),
    "no-file": (("vit", "photo"), "no such file or folder"),
    "none-readable": (("vit", "broken.png"), "none of the images can be read"),
    "photos": (("vit", "photos", "--photos", 0), "--photos 0 must be at least 1"),
    "truth": (("vit", "photos", "--truth-images", -1), "--truth-images -1 must be at least 0"),
    "no-model": (("nothing", "photos"), "nothing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_asked_wrongly(case: str, place: Path, ask: Ask, tmp_path: Path) -> None:
    words, said = WRONG[case]
    there = [
        place / word if isinstance(word, str) and word[0] != "-" and i < 2 else word
        for i, word in enumerate(words)
    ]
    assert said in ask(*there, "--output", tmp_path / "out", code=2)
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.usefixtures("undrawn")
def test_output_is_asked_for_and_not_written_over(place: Path, ask: Ask, tmp_path: Path) -> None:
    assert "nothing to do: --output FOLDER" in ask(place / "vit", code=2)
    (tmp_path / "kept.txt").write_text("mine")
    assert "add --overwrite" in ask(place / "vit", "--output", tmp_path, code=2)
    ask(place / "vit", "--output", tmp_path, "--overwrite")
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_photos_are_spread_over_the_list(place: Path) -> None:
    digits = open_photos(["digits"])
    assert len(digits) > 1000
    few = subsample_evenly(digits, 3)
    assert (few.keys[0], few.keys[2], len(few)) == (digits.keys[0], digits.keys[-1], 3)
    photos = open_photos([str(place / "photos"), str(place / "broken.png")])
    assert len(photos) == 6
    assert subsample_evenly(photos, 9) is photos
    assert len(subsample_evenly(photos, 1)) == 1


@pytest.mark.usefixtures("undrawn")
def test_chance_is_another_for_every_image_of_every_batch() -> None:
    model = create_model("ViT-mu/4", depth=1, image_size=(12, 16), num_classes=3).eval()
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(model.head.linear.weight, generator=generator)
    image = torch.randn(1, 3, 12, 16, generator=generator)
    inspection = parts.Inspection.start("tiny")
    batches = iter([image, image.repeat(2, 1, 1, 1)])
    parts.inspect_faithfulness(inspection, model, batches, "mean")
    arrays = inspection.arrays
    chance, rollout = arrays["deletion_random"], arrays["deletion_rollout"]
    np.testing.assert_allclose(rollout, rollout[:1].repeat(3, axis=0), atol=1e-5)  # float32
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(chance[one] - chance[other]).max() > 1e-3
