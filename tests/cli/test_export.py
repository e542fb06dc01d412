"""`patchwords export`, and `patchwords predict` with what it wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from patchwords.cli import main
from patchwords.export.comparison import find_recorded_images
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT
from patchwords.weights.store import save_pretrained

Say = Callable[..., str]
CLASSES = ("dark", "light", "red")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each class, four images of noise in it."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    random = np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 256, (19, 23, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose logits are far apart."""
    config = ViTConfig(
        patch_size=4, width=12, depth=1, heads=2, mlp_width=23, image_size=(12, 12), num_classes=3
    )
    vit = ViT(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in vit.parameters():
        parameter.data.normal_(0.0, 0.7, generator=generator)
    return save_pretrained(vit, tmp_path_factory.mktemp("model"), labels=CLASSES)


@pytest.fixture(scope="module")
def exported(one_thread: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shapes.onnx and shapes.xml."""
    folder = tmp_path_factory.mktemp("exported")
    for name in ("shapes.onnx", "shapes.xml"):
        assert main(["export", str(model), str(folder / name)]) == 0
    return folder


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Words of the command line -> what is printed."""

    def run(*words: object) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Say:
    """Words of the command line -> the one line of the error."""

    def run(*words: object) -> str:
        assert main([str(word) for word in words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        return error

    return run


def test_what_export_says(say: Say, model: Path, photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    out = say("export", model, file, "--quantize", "int8", "--calibrate", photos, "--image-size", 8)
    first, *lines = out.splitlines()
    assert first.startswith("note: positions resized from 3x3 to 2x2 patches")
    assert f"{file}: 0.0 MB; images [batch, 3, 8, 8] -> logits [batch, 3]" in lines
    (difference,) = (line for line in lines if line.startswith("largest difference"))
    float32, int8 = (float(found) for found in re.findall(r"\d\.\de[+-]\d+", difference))
    assert float32 < 1e-4 < int8
    assert f"accuracy on 12 held-out images of {photos}:" in lines
    accuracies = [line for line in lines if "95 % interval" in line]
    assert [line.split(": ")[0].strip() for line in accuracies] == ["PyTorch", str(file)]
    assert re.search(r"^  \d+ of 12 images get another prediction$", out, re.MULTILINE)
    assert f"patchwords predict {file}" in out
    assert "import onnxruntime" in out


@pytest.mark.parametrize("name", ["shapes.onnx", "shapes.xml"])
def test_predict_answers_as_with_pytorch(
    say: Say, model: Path, exported: Path, photos: Path, name: str
) -> None:
    found, wanted = (
        [json.loads(line) for line in predict(say, source, photos)]
        for source in (exported / name, model)
    )
    assert len(found) == len(wanted) == 12
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["path"] == theirs["path"]
        assert [best["label"] for best in ours["predictions"]] == [
            best["label"] for best in theirs["predictions"]
        ]
        scores = [[best["score"] for best in answer["predictions"]] for answer in (ours, theirs)]
        np.testing.assert_allclose(*scores, atol=1e-5)  # float32


def predict(say: Say, source: Path, photos: Path) -> list[str]:
    words = ("predict", source, photos, "--json", "--batch-size", 5, "--device", "cpu")
    return say(*words, "--workers", 0).splitlines()


def test_the_images_of_a_run_are_looked_at_if_they_are_still_there(
    photos: Path, tmp_path: Path
) -> None:
    def images(data: object) -> int | None:
        (tmp_path / "config.yaml").write_text(f"data: {data}\n")
        found = find_recorded_images(tmp_path)
        return None if found is None else len(found)

    assert images(photos) == 12
    assert images("digits") == 1797
    assert images("hf:somebody/flowers") is None  # nothing is fetched
    assert images(tmp_path / "gone") is None
    assert images("[") is None


def test_what_export_refuses(refused: Say, model: Path, tmp_path: Path) -> None:
    onnx, xml = tmp_path / "a.onnx", tmp_path / "a.xml"
    assert "writes NAME.xml, and" in refused("export", model, onnx, "--to", "openvino")
    assert "--opset 19 is for ONNX" in refused("export", model, xml, "--opset", 19)
    assert "int8 is for ONNX" in refused("export", model, xml, "--quantize", "int8")
    assert "no weights at" in refused("export", tmp_path / "nowhere", onnx)
    assert "no such file" in refused("export", model, onnx, "--calibrate", tmp_path / "data")
    assert "does not divide" in refused("export", model, onnx, "--image-size", 13)
    onnx.write_text("mine")
    assert "exists; add --overwrite" in refused("export", model, onnx)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


def test_what_predict_refuses(refused: Say, model: Path, exported: Path, photos: Path) -> None:
    onnx, xml = exported / "shapes.onnx", exported / "shapes.xml"

    def line(source: Path, *words: str) -> str:
        return refused("predict", source, photos, *words)

    assert f"patchwords export {model} {model.name}.onnx" in line(model, "--engine", "onnx")
    assert f"patchwords export {model} {model.name}.xml" in line(model, "--engine", "openvino")
    assert "takes a run folder" in line(onnx, "--engine", "torch")
    assert "runs with --engine onnx" in line(onnx, "--engine", "openvino")
    assert "runs with --engine openvino" in line(xml, "--engine", "onnx")
    assert "runs on the CPU" in line(onnx, "--device", "cuda")
    assert "--precision bf16 is not for" in line(onnx, "--precision", "bf16")
    assert "no file" in line(exported / "other.onnx")
