"""A small fabricated run: known numbers, generated pictures, no training."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from patchwords.data.dataset import ImageDataset
from patchwords.evaluation.metrics import compute_classification_metrics
from patchwords.evaluation.predictions import Predictions, write_predictions

NASTY = ("<b>bold</b>", 'a "quoted" & $class$', "</style><script>alert(1)</script>", "plain")


class Pictures:
    """Generated images: even rows are photos (JPEG), odd ones as small as digits (PNG)."""

    def __call__(self, row: int) -> bytes:
        if row == 5:
            raise FileNotFoundError("gone.jpg")
        size = (131, 67) if row % 2 == 0 else (8, 8)
        image = Image.new("RGB", size, (row * 7 % 256, 90, 200))
        file = io.BytesIO()
        image.save(file, "JPEG" if row % 2 == 0 else "PNG")
        return file.getvalue()


def fabricate(folder: Path, classes: tuple[str, ...], n: int = 60) -> ImageDataset:
    """Write a whole run folder and give its held-out images."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2)
    k = len(classes)
    labels = np.arange(n) % k
    logits = random.normal(size=(n, k)) + 1.5 * np.eye(k)[labels]
    probabilities = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    keys = [f"{classes[label]}/{i}.jpg" for i, label in enumerate(labels)]
    examples = ImageDataset(classes, labels, keys, np.ones(n), Pictures(), np.arange(n))
    predictions = Predictions(np.arange(n), labels, probabilities, [])
    write_predictions(folder / "predictions.csv", examples, predictions, classes)
    per_class = np.bincount(labels, minlength=k).tolist()
    write_json(
        folder / "evaluation.json",
        {
            **compute_classification_metrics(labels, probabilities, classes),
            "split": "test",
            "selected": False,
            "skipped": [{"path": "<u>torn</u>.jpg", "reason": "truncated <here>"}],
            "model": "ViT-Ti/16",
            "parameters": 5_717_416,
            "macs": 1_254_000_000,
            "image_size": [96, 64],
        },
    )
    write_json(
        folder / "environment.json",
        {
            "command": "patchwords finetune '<photos>' --model ViT-Ti/16",
            "versions": {"patchwords": "0.1.0", "torch": "2.13.0"},
            "device": {"name": "a processor", "type": "cpu", "threads": 2, "precision": "fp32"},
            "started": "2025-05-04T10:12:44",
            "data": {"source": "<photos>", "kind": "folder", "fingerprint": "0123abcd"},
        },
    )
    write_json(
        folder / "data.json",
        {
            "source": "<photos>",
            "kind": "folder",
            "classes": list(classes),
            "splits": {
                "train": {"images": 4 * n, "per_class": [4 * c for c in per_class]},
                "test": {"images": n, "per_class": per_class},
            },
            "notes": ["7 files are not images: <notes>.txt"],
            "skipped": [{"path": "bad.jpg", "reason": "not an image", "split": "train"}],
        },
    )
    write_metrics(folder / "metrics.jsonl")
    (folder / "config.yaml").write_text(
        "model: ViT-Ti/16\nweights: null\nrecipe:\n  lr: 0.03\naugment:\n  crop_area: [0.05, 1]\n"
    )
    return examples


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def write_metrics(path: Path) -> None:
    rows: list[dict[str, object]] = []
    for step in range(1, 401):
        row = {"kind": "train", "step": step, "epoch": step / 40, "loss": 2 / step, "lr": 0.01}
        speed = {"images_per_second": 97, "data_wait": 0.05, "seconds": 93.2 * step / 400}
        speed |= {"utilisation": 0.37, "memory": 1_234_000_000}
        rows.append({**row, "accuracy": 1 - 1 / step, **speed})
        if step % 100 == 0:
            score = {"loss": 0.5, "accuracy": 0.5 + step / 1000, "images": 53}
            where = {"kind": "evaluation", "split": "validation", "step": step, "epoch": step / 40}
            rows.append({**where, **score})
            few = {"shots": 5, "accuracy": 0.3 + step / 2000, "images": 47}
            rows.append({"kind": "fewshot", "step": step, "epoch": step / 40, **few})
        if step in {123, 321}:
            spike = {"about": "loss spike", "text": "loss spike: 9", "loss": 9.0}
            rows.append({"kind": "note", "step": step, "epoch": step / 40, **spike})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
