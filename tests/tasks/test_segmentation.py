"""Segmentation from the command line: train, resume, evaluate, predict, report."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from drawn_scenes import CLASSES, draw_scene, write_scenes
from PIL import Image

import patchwords as pw
from patchwords.cli import main
from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.device import choose_device
from patchwords.models.zoo import create_model
from patchwords.tasks.segmentation import Segmentation
from patchwords.tasks.segmentation.model import (
    build_segmentation_model,
    compute_window_logits,
    segment_photo,
)
from patchwords.training.config import FinetuneConfig
from patchwords.weights.store import from_pretrained

CPU = ("--workers", 0, "--device", "cpu", "--precision", "fp32")
LEARNING = (
    *("--model", "ViT-mu/4", "--patch-size", 2, "--steps", 110, "--batch-size", 8),
    *("--lr", 0.008, "--eval-every", 110),
)
TINY = ("--model", "ViT-mu/4", "--steps", 12, "--batch-size", 4, "--lr", 0.01, "--eval-every", 4)


def call(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("data") / "scenes", 60)


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned the shapes. To be read only."""
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    calm = ("--scale-range", 0.8, 1.25, "--color-jitter", 0)
    assert call("finetune", scenes, *LEARNING, *CPU, *calm, "--output", folder) == 0
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def read_result(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "segmentation.json").read_text())
    return result


def test_shapes_are_learned(run: Path) -> None:
    result = read_result(run)
    assert result["miou"]["value"] > 0.9
    assert result["miou"]["low"] < result["miou"]["value"] < result["miou"]["high"]
    assert [row["class"] for row in result["per_class"]] == list(CLASSES)
    assert "task: segmentation" in (run / "config.yaml").read_text()
    card = json.loads((run / "model" / "config.json").read_text())
    assert card["task"]["name"] == "segmentation"
    assert len(list((run / "predictions").rglob("*.png"))) == result["images"]


def test_evaluation_of_the_folder_gives_the_same(
    run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "again"
    assert call("evaluate", run, scenes, "--device", "cpu", "--json", "--output", folder) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = read_result(run)
    for name in ("miou", "pixel_accuracy", "confusion", "per_class"):
        assert printed[name] == expected[name]
    assert printed["trained_on"] is False
    assert (folder / "report.html").is_file()
    assert call("evaluate", run, scenes, "--device", "cpu") == 0
    assert "mIoU" in capsys.readouterr().out


def test_classes_of_other_data_are_matched_by_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_scenes(tmp_path / "other", 6, first=900)
    (other / "classes.txt").unlink()
    (other / "classes.csv").write_text("name,value\nsquare,2\nground,0\ndisc,1\n")
    found = pw.evaluate(run, other, device="cpu", split="all")
    assert found["miou"]["value"] > 0.8
    (other / "classes.csv").write_text("name,value\nsquares,2\nground,0\ndisc,1\n")
    assert call("evaluate", run, other) == 2
    assert "did you mean 'square'" in capsys.readouterr().err


def test_predictions_are_masks_and_overlays(
    run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "damaged.png").write_bytes(b"no photo")
    photo, mask = draw_scene(500)
    Image.fromarray(photo).save(tmp_path / "new.png")
    folder = tmp_path / "masks"
    words = ("predict", run, tmp_path / "new.png", tmp_path / "damaged.png", "--device", "cpu")
    assert call(*words, "--output", folder, "--json") == 2  # one cannot be read
    out, err = capsys.readouterr()
    row = json.loads(out)
    assert row["predictions"][0]["label"] == "ground"
    assert "damaged.png" in err
    assert sorted(path.name for path in folder.iterdir()) == ["new-overlay.jpg", "new.png"]
    with Image.open(folder / "new.png") as image:
        answer = np.asarray(image)
        assert (image.mode, image.size) == ("P", (32, 24))
    assert (answer == mask).mean() > 0.9
    loaded = pw.load_run(run, device="cpu")
    segmented = loaded.predict(photo)
    assert (segmented.mask == answer).all()
    assert segmented.overlay.shape == photo.shape
    assert loaded.labels == CLASSES
    assert call(*words, "--output", folder) == 2
    assert "--output" in capsys.readouterr().err  # it exists


def test_the_report_shows_classes_and_photos(run: Path) -> None:
    page = (run / "report.html").read_text()
    for text in ("mIoU on the test images", "Worst photos", "Best photos", "Answered with"):
        assert text in page
    assert all(name in page for name in CLASSES)
    assert page.count("<img") >= 12
    before = hashlib.sha256(page.encode()).hexdigest()
    assert call("report", run) == 0
    assert hashlib.sha256((run / "report.html").read_bytes()).hexdigest() == before


def test_commands_for_classes_refuse_it(
    run: Path, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("export", run, tmp_path / "model.onnx") == 2
    assert "is of the task segmentation" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(run / "model", damaged)
    (damaged / "decoder.safetensors").unlink()
    assert call("predict", damaged, scenes / "images" / "000.png") == 2
    assert "has no decoder.safetensors" in capsys.readouterr().err


def test_a_trained_backbone_starts_another_run(run: Path, scenes: Path, tmp_path: Path) -> None:
    words = ("--weights", run, "--steps", 2, "--batch-size", 4, "--train", "head", *CPU)
    assert call("finetune", scenes, *words, "--output", tmp_path / "run") == 0
    old, new = (from_pretrained(folder).model.state_dict() for folder in (run, tmp_path / "run"))
    assert all(torch.equal(old[name], value) for name, value in new.items())
    assert read_result(tmp_path / "run")["decoder"] == "linear"


@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_killed_and_resumed_is_the_same_to_the_bit(
    decoder: str, scenes: Path, tmp_path: Path
) -> None:
    words = ("finetune", scenes, *TINY, *CPU, "--decoder", decoder, "--save-every", 5)
    assert call(*words, "--output", tmp_path / "whole") == 0
    evaluations = []

    def killed(self: Segmentation, *args: Any) -> dict[str, Any]:
        evaluations.append(args)
        if len(evaluations) == 2:
            raise KeyboardInterrupt
        return evaluate(self, *args)

    evaluate = Segmentation.evaluate
    with mock.patch.object(Segmentation, "evaluate", killed):
        assert call(*words, "--output", tmp_path / "killed") != 0
    assert call("finetune", scenes, "--output", tmp_path / "killed", "--resume") == 0
    for name in ("model.safetensors", "decoder.safetensors"):
        whole, resumed = (
            (tmp_path / run / "model" / name).read_bytes() for run in ("whole", "killed")
        )
        assert whole == resumed
    whole, resumed = (read_result(tmp_path / run) for run in ("whole", "killed"))
    assert whole["confusion"] == resumed["confusion"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--mixup", 0.2), "--mixup is for classification; segmentation has --scale-range"),
        (("--decoder", "maks"), "did you mean 'mask'"),
        (("--balance", "loss"), "--balance loss counts images"),
        (("--scale-range", 2, 1), "give 0 < smallest <= largest"),
        (("--task", "classification"), "without a label"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(
    words: Any, line: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("finetune", scenes, *words, "--steps", 1, "--output", tmp_path / "run") == 2
    assert line in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_other_tasks_refuse_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("finetune", "digits", "--decoder", "mask", "--steps", 1, "--explain") == 2
    assert "--decoder mask has a meaning with --task segmentation only" in capsys.readouterr().err


def test_the_loss_of_a_batch_is_the_mean_of_its_images() -> None:
    """So a batch may be cut for the memory, and shared by processes."""
    objective = Segmentation(FinetuneConfig(), Preprocess(image_size=(16, 16)))
    backbone = create_model("ViT-mu/4", num_classes=1, image_size=16, dropout=0.0)
    learner = build_segmentation_model(backbone, "linear", 3, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 3, 16, 16), generator=generator).to(torch.uint8)
    masks = torch.randint(3, (4, 16, 16), generator=generator).to(torch.uint8)
    masks[0, :8], masks[3] = 255, 255  # one without any label
    batch = ImageBatch.of(images, {"mask": masks})
    whole = objective.loss(learner, batch, 0)[0]
    parts = [objective.loss(learner, batch[i : i + 1], 0)[0] for i in range(4)]
    assert torch.allclose(whole, torch.stack(parts).mean())
    assert parts[3] == 0


def test_windows_are_averaged_over_a_long_photo() -> None:
    preprocess = Preprocess(image_size=(16, 16), crop_fraction=1.0)
    device = choose_device("cpu", "fp32")
    pixels = np.random.default_rng(0).integers(0, 255, (16, 40, 3), dtype=np.uint8)

    class Ramp(torch.nn.Module):
        """Two classes: brightness of the pixel itself, and a constant."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.cat([images[:, :1], torch.zeros_like(images[:, :1])], 1)

    logits = compute_window_logits(Ramp(), pixels, preprocess, device)
    assert logits.shape == (1, 2, 16, 40)
    expected = torch.from_numpy(pixels[..., 0] / 127.5 - 1).float()
    assert torch.allclose(logits[0, 0], expected, atol=1e-6)  # alike in every window
    answer = segment_photo(Ramp(), pixels, preprocess, device)
    assert (answer == (expected <= 0).numpy()).all()
