"""`pw.load_dataset`: any source as a torch Dataset; and `Preprocess` on every form of an image."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from api_stage import COUNTS, draw
from PIL import Image
from torch.utils.data import DataLoader

import patchwords as pw
from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.loader import EvalTransform
from patchwords.errors import ConfigError, DataError

PREPROCESS = pw.Preprocess((16, 16))


def test_an_item_is_a_pil_image_and_its_class(photos: Path) -> None:
    data = pw.load_dataset(photos)
    image, target = data[0]
    assert isinstance(image, Image.Image)
    assert data.classes == tuple(COUNTS)
    assert np.bincount(data.targets).tolist() == list(COUNTS.values())
    assert (target, data.paths[0]) == (0, "blue/00.png")
    np.testing.assert_array_equal(np.asarray(image), np.asarray(draw("blue", 0)))
    assert data[-1][1] == 2
    with pytest.raises(IndexError):
        data[40]


def test_the_splits_are_those_of_training(photos: Path) -> None:
    parts = [pw.load_dataset(str(photos), split) for split in ("train", "validation", "test")]
    assert len({path for part in parts for path in part.paths}) == 40
    assert pw.load_dataset(photos, "val").paths == parts[1].paths
    assert pw.load_dataset(photos, "val", seed=1).paths != parts[1].paths
    with pytest.raises(ConfigError, match="unknown split 'tests'; did you mean 'test'"):
        pw.load_dataset(photos, "tests")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_takes_it(photos: Path, workers: int) -> None:
    data = pw.load_dataset(photos, transform=PREPROCESS)
    loader = DataLoader(pickle.loads(pickle.dumps(data)), batch_size=16, num_workers=workers)
    batches = list(loader)
    images = torch.cat([images for images, _ in batches])
    assert (images.shape, images.dtype) == ((40, 3, 16, 16), torch.float32)
    assert torch.cat([targets for _, targets in batches]).tolist() == data.targets.tolist()
    torch.testing.assert_close(images[:1], PREPROCESS(draw("blue", 0)), rtol=0, atol=0)


def test_transforms_of_training_and_evaluation(photos: Path) -> None:
    evaluation = pw.load_dataset(photos, transform=EvalTransform(PREPROCESS))
    image, _ = evaluation[3]
    assert (image.shape, image.dtype) == ((3, 16, 16), torch.uint8)
    crop = TrainTransform(PREPROCESS, AugmentSettings(), seed=0)
    training = pw.load_dataset(photos, transform=crop)
    first = training[3][0]
    assert torch.equal(training[3][0], first)
    training.set_epoch(1)
    assert not torch.equal(training[3][0], first)
    sizes = pw.load_dataset(photos, transform=lambda image: image.size)
    assert sizes[1][0] == (25, 24)


def test_a_source_without_files() -> None:
    data = pw.load_dataset("digits", "test", transform=pw.Preprocess((8, 8), channels=1))
    image, target = data[0]
    assert image.shape == (1, 8, 8)
    assert data.classes[target] in "0123456789"


def test_a_bad_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a/broken.png: not an image"):
        pw.load_dataset(tmp_path)[0]


def test_preprocessing_takes_every_form(photos: Path) -> None:
    path = photos / "green" / "01.png"
    image = Image.open(path)
    batch = PREPROCESS([str(path), path, path.read_bytes(), image, np.asarray(image)])
    assert (batch.shape, batch.dtype) == ((5, 3, 16, 16), torch.float32)
    assert all(torch.equal(row, batch[0]) for row in batch)
    assert -1 <= batch.min() < batch.max() <= 1
    assert torch.equal(PREPROCESS(path), batch[:1])
    with pytest.raises(DataError, match=r"nowhere\.png: No such file or directory"):
        PREPROCESS("nowhere.png")
