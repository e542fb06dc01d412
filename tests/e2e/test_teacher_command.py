"""`--teacher`: distillation from a run, a ResNet and other orders of classes; with and without labels."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from stage import TINY, call, done, rows, snapshot, weights

import patchwords as pw
from patchwords.models.build import build_model
from patchwords.models.init import init_weights
from patchwords.models.resnet.config import BIT_TRUNK, ResNetConfig

SMALL = ("--workers", 0, "--device", "cpu", "--precision", "fp32")


def test_finetuning_learns_from_a_run(run: Path, photos: Path, tmp_path: Path) -> None:
    """From scratch, 30 steps of the teacher alone; and stopped and gone on with to the bit."""
    words = [*TINY[:4], "--steps", 30, *TINY[6:], "--teacher", run, "--lr", 0.01, "--mixup", 0.2]
    words += ["--temperature", 2, "--crop-area", 0.7, 1, "--log-every", 1, "--save-every", 10]
    done("finetune", photos, *words, "--output", tmp_path / "whole")
    config = yaml.safe_load((tmp_path / "whole" / "config.yaml").read_text())
    assert (config["teacher"], config["temperature"]) == (str(run), 2.0)
    assert config["teacher_weight"] == 1.0
    train = rows(tmp_path / "whole", "train")
    assert train[-1]["loss"] < 0.7 * train[0]["loss"]
    assert 0 <= train[-1]["agreement"] <= 1
    results = json.loads((tmp_path / "whole" / "evaluation.json").read_text())
    assert results["accuracy"]["value"] > 0.5  # of three classes
    assert "What to do next" in (tmp_path / "whole" / "report.html").read_text()

    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-00000030")
    done("finetune", photos, "--output", tmp_path / "again", "--resume")
    assert weights(tmp_path / "again") == weights(tmp_path / "whole")


def test_pretraining_learns_from_a_run_without_labels(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in photos.rglob("*.png"):
        shutil.copy(path, flat / f"{path.parent.name}-{path.name}")
    words = ["--objective", "distill", "--teacher", run, "--lr", 0.01, "--crop-area", 0.7, 1]
    words += [*TINY[:4], "--steps", 40, *TINY[6:], "--validation", 0.3]
    out = done("pretrain", flat, *words, "--output", tmp_path / "run")
    results = json.loads((tmp_path / "run" / "objective.json").read_text())
    assert (results["primary_metric"], results["images"]) == ("agreement", 12)
    assert results["agreement"] > 0.5
    assert f"agreement {results['agreement']:.4g}" in out
    student = pw.from_pretrained(tmp_path / "run")
    assert student.labels == ("disc", "square", "stripe")
    (best,) = student.predict(next(flat.iterdir()), top_k=1)
    assert best["label"] in student.labels


def test_a_resnet_teaches_a_vit(photos: Path, tmp_path: Path) -> None:
    """Of another family, image size, and classes: it knows one more."""
    config = ResNetConfig(replace(BIT_TRUNK, units=(1, 1)), (32, 32), num_classes=4)
    model = build_model(config)
    init_weights(model, 0)
    labels = ("stripe", "newt", "square", "disc")
    preprocess = pw.Preprocess((32, 32), mean=(0.4, 0.4, 0.4), std=(0.3, 0.3, 0.3))
    pw.save_pretrained(model, tmp_path / "bit", labels=labels, preprocess=preprocess)
    words = (*TINY, "--teacher", tmp_path / "bit", "--distillation", "hard")
    done("finetune", photos, *words, "--teacher-weight", 0.5, "--output", tmp_path / "run")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["distillation"], config["teacher_weight"]) == ("hard", 0.5)
    assert rows(tmp_path / "run", "train")[-1]["agreement"] >= 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--classes", "disc", "square", "--teacher", "WITHOUT"),
            "was pre-trained without classes",
        ),
        (("--teacher", "OTHER"), "does not know 3 of 3 classes of the data, such as 'disc'"),
        (("--teacher", "GREY"), "takes images of 1 channels, and the model that learns 3"),
        (("--teacher", "nowhere/run"), "nowhere/run"),
        (("--distillation", "hard"), "--distillation is for learning from a --teacher"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], line: str, photos: Path, tmp_path: Path
) -> None:
    model = pw.create_model("ViT-mu/4", num_classes=1, image_size=16)
    pw.save_pretrained(model, tmp_path / "WITHOUT", labels=())
    model = pw.create_model("ViT-mu/4", num_classes=2, image_size=16)
    pw.save_pretrained(model, tmp_path / "OTHER", labels=("cat", "dog"))
    model = pw.create_model("ViT-mu/4", num_classes=3, image_size=16, channels=1)
    pw.save_pretrained(
        model,
        tmp_path / "GREY",
        labels=("disc", "square", "stripe"),
        preprocess=pw.Preprocess((16, 16), channels=1),
    )
    before = snapshot(tmp_path)
    given = [tmp_path / word if word in {"WITHOUT", "OTHER", "GREY"} else word for word in words]
    assert line in call("finetune", photos, *TINY, *given, "--output", tmp_path / "run").error
    assert snapshot(tmp_path) == before
