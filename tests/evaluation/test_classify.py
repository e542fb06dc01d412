"""Running a model over batches: the right numbers, and nothing of training disturbed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.evaluation.predictions import Predictions, predict_probabilities, write_predictions

B, C, H, W, CLASSES = 3, 3, 5, 7, 2


@dataclass
class Batch:
    """What `predict_probabilities` needs of the loader's batch."""

    images: torch.Tensor  # [B, C, H, W] uint8
    targets: torch.Tensor
    indices: torch.Tensor
    bad: list[tuple[int, str]]


class Halves:
    """Stands in for Preprocess: bytes to [-1, 1]."""

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        return images / 127.5 - 1


class Brightness(torch.nn.Module):
    """Answers by the mean pixel; noisy in training mode, as dropout would be."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Dropout(0.5)
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.training or torch.is_grad_enabled())
        bright = self.frozen(images).mean((1, 2, 3))  # [B]
        return torch.stack([bright, -bright], 1)  # [B, 2]


def batches() -> Iterator[Batch]:
    yield Batch(
        torch.full((B, C, H, W), 255, dtype=torch.uint8),
        torch.tensor([0, 0, 1]),
        torch.tensor([0, 1, 2]),
        [],
    )
    empty = torch.empty(0, dtype=torch.int64)
    yield Batch(torch.empty(0, C, H, W, dtype=torch.uint8), empty, empty, [(3, "truncated")])
    yield Batch(
        torch.zeros(1, C, H, W, dtype=torch.uint8),
        torch.tensor([-1]),
        torch.tensor([5]),
        [(4, "?")],
    )


def run(model: torch.nn.Module, precision: str = "fp32") -> Predictions:
    return predict_probabilities(model, batches(), Halves(), "cpu", precision)  # type: ignore[arg-type]


def test_probabilities_in_order_and_bad_images_named() -> None:
    result = run(Brightness())
    sure = 1 / (1 + np.exp(-2.0))  # softmax of (1, -1)
    assert result.indices.tolist() == [0, 1, 2, 5]
    assert result.labels.tolist() == [0, 0, 1, -1]
    assert result.bad == [(3, "truncated"), (4, "?")]
    assert result.probabilities.dtype == np.float32
    # float32 softmax: a few units in the last place
    np.testing.assert_allclose(result.probabilities[:, 0], [sure] * 3 + [1 - sure], atol=1e-6)


def test_reads_what_the_loader_gives() -> None:
    def read(row: int) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (11, 13), (row * 40,) * 3).save(file, "PNG")
        return file.getvalue() if row != 2 else b"not an image"

    rows = np.array([4, 2, 0])
    three = ImageDataset(("a", "b"), rows % 2, ["4", "2", "0"], np.ones(3), read, rows)
    view = Preprocess(image_size=(H, W))
    result = predict_probabilities(Brightness(), load_eval_batches(three, view, batch_size=2), view)
    assert result.indices.tolist() == [0, 2]
    assert [index for index, _ in result.bad] == [1]
    bright = 160 / 127.5 - 1
    # float32: a few units in the last place of the mean of 105 equal numbers
    assert result.probabilities[0, 0] == pytest.approx(1 / (1 + np.exp(-2 * bright)), abs=1e-5)


def test_training_is_left_as_it_was() -> None:
    model = Brightness().train()
    model.frozen.eval()  # a part that stays in eval while the rest trains
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    run(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[arg-type]
    assert model.training
    assert not model.frozen.training
    assert not any(model.seen)  # eval mode and no gradients while it ran
    assert torch.is_grad_enabled()


def test_modes_come_back_after_an_error() -> None:
    class Broken(Brightness):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="broken"):
        run(model)
    assert model.training


def test_softmax_is_float32_under_bf16() -> None:
    result = run(Brightness(), "bf16")
    assert result.probabilities.dtype == np.float32
    np.testing.assert_allclose(result.probabilities.sum(1), 1, atol=1e-6)


def test_nothing_readable_gives_empty_predictions() -> None:
    result = predict_probabilities(Brightness(), [], Halves())  # type: ignore[arg-type]
    assert len(result.indices) == len(result.labels) == len(result.probabilities) == 0


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bf16'"):
        run(Brightness(), "fp16")


def examples(keys: list[str], labels: list[int], classes: tuple[str, ...]) -> ImageDataset:
    rows = np.arange(len(keys))
    return ImageDataset(classes, np.array(labels), keys, np.ones(len(keys)), lambda row: b"", rows)


def test_predictions_csv(tmp_path: Path) -> None:
    classes = ('a "b", <c>', "d")
    keys = ["x/ü,1.jpg", "odd\udcff.jpg", "z.jpg"]  # the second is not UTF-8 on disk
    given = Predictions(
        np.array([2, 0, 1]),
        np.array([1, 0, -1]),
        np.array([[0.75, 0.25], [1.0, 0.0], [0.125, 0.875]], dtype=np.float32),
        [],
    )
    path = tmp_path / "predictions.csv"
    write_predictions(path, examples(keys, [0, -1, 1], classes), given, classes)
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["path", "label", "prediction", "probability", "correct", 'p:a "b", <c>', "p:d"],
        ["z.jpg", "d", 'a "b", <c>', "0.750000", "false", "0.750000", "0.250000"],
        ["x/ü,1.jpg", 'a "b", <c>', 'a "b", <c>', "1.000000", "true", "1.000000", "0.000000"],
        ["odd\udcff.jpg", "", "d", "0.875000", "", "0.125000", "0.875000"],
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["predictions.csv"]


def test_predictions_csv_of_many_classes_has_no_column_for_each(tmp_path: Path) -> None:
    classes = tuple(f"c{i}" for i in range(101))
    given = Predictions(np.array([0]), np.array([1]), np.eye(101, dtype=np.float32)[[1]], [])
    write_predictions(tmp_path / "p.csv", examples(["k"], [1], classes), given, classes)
    assert (tmp_path / "p.csv").read_text() == (
        "path,label,prediction,probability,correct\nk,c1,c1,1.000000,true\n"
    )
