"""The adversarial patch on a model whose worst patch is known, and how patches are pasted."""

from __future__ import annotations

import io
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from patchwords.data.dataset import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.data.sources.digits import MemoryReader
from patchwords.device import choose_device
from patchwords.errors import DataError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness import attacks as adversarial_patch
from patchwords.evaluation.robustness.attacks import (
    PATCH_AREAS,
    PATCH_PERTURBATIONS,
    compute_patch_gradient,
    compute_patch_side,
    match_channels,
    paste_patch,
    prepare_adversarial_patch,
    resize_patch,
    train_adversarial_patch,
)
from patchwords.evaluation.robustness.measure import measure_robustness
from patchwords.evaluation.robustness.perturbation import PerturbationBatch
from patchwords.models.build import Model
from patchwords.weights.pretrained import Pretrained

HEIGHT, WIDTH = 19, 23
ADVERSARIAL, NOISE, GREY = PATCH_PERTURBATIONS


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adversarial_patch, "NUM_PATCH_STEPS", 3)


class Brightness(nn.Module):
    """Class 0 is dark, class 1 bright: the worst patch for dark images is white."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([-1.0, 1.0]))

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((1, 2, 3))[:, None] * self.weight


def subject(
    name: str = "model", channels: int = 3, size: tuple[int, int] = (19, 23)
) -> LoadedModel:
    model = cast(Model, Brightness().eval())
    preprocess = Preprocess(size, resize="squash", channels=channels)  # type: ignore[arg-type]
    return LoadedModel(name, Pretrained(model, preprocess, ("0", "1")), choose_device("cpu"), 0)


def dark(count: int, unreadable: int = 0) -> ImageDataset:
    """Images of one dark grey each, all of class 0."""
    files = []
    for level in range(count):
        file = io.BytesIO()
        Image.fromarray(np.full((8, 8), level % 100, np.uint8)).save(file, "PNG")
        files.append(b"no image" if level < unreadable else file.getvalue())
    keys = [f"{i}" for i in range(count)]
    rows = np.arange(count)
    return ImageDataset(("0", "1"), rows * 0, keys, rows * 0 + 1, MemoryReader(tuple(files)), rows)


def silent(what: str, done: int, total: int) -> None:
    pass


def batch(of: LoadedModel, *indices: int) -> PerturbationBatch:
    height, width = of.preprocess.image_size
    own = torch.Generator().manual_seed(5)
    shape = len(indices), of.preprocess.channels, height, width
    images = torch.randint(0, 100, shape, generator=own, dtype=torch.uint8)
    return PerturbationBatch(
        images, torch.zeros(len(indices), dtype=torch.int64), list(indices), of
    )


def test_a_pasted_patch_is_where_its_corner_says_and_nowhere_else() -> None:
    images = torch.zeros(3, 3, HEIGHT, WIDTH)
    patch = torch.arange(1.0, 76).view(3, 5, 5)
    corners = torch.tensor([[0.0, 0.0], [0.999, 0.999], [0.5, 0.25]])
    found = paste_patch(images, patch, corners)
    assert torch.equal(images, torch.zeros_like(images))
    for image, (top, left) in zip(found, [(0, 0), (14, 18), (7, 4)], strict=True):
        wanted = torch.zeros(3, HEIGHT, WIDTH)
        wanted[:, top : top + 5, left : left + 5] = patch  # of 15 and 19 places
        assert torch.equal(image, wanted)


def test_the_side_covers_the_area() -> None:
    assert [compute_patch_side(area, 32, 32) for area in PATCH_AREAS] == [3, 5, 7, 10]
    assert [compute_patch_side(area, 224, 224) for area in PATCH_AREAS] == [22, 35, 50, 71]
    assert compute_patch_side(0.01, 32, 32) == 1
    assert compute_patch_side(100, 19, 23) == 19


def test_the_gradient_is_summed_over_the_places_where_the_patch_is() -> None:
    """The model is linear: every pixel of the patch has one part in the mean of each image."""
    of = subject()
    images, labels = torch.zeros(3, 3, HEIGHT, WIDTH), torch.zeros(3, dtype=torch.int64)
    corners = torch.rand(3, 2)
    patch = torch.full((3, 4, 4), 10.0)
    found = compute_patch_gradient(of, patch, images, labels, 4, corners)
    assert (found > 0).all()  # brighter is worse for dark images
    torch.testing.assert_close(found, torch.full_like(found, found.mean().item()))
    bright = compute_patch_gradient(of, patch, images, labels + 1, 4, corners)
    assert (bright < 0).all()


def test_training_finds_the_worst_patch() -> None:
    heard: list[tuple[str, int, int]] = []
    patch = train_adversarial_patch(
        subject(), dark(40), 1, lambda *said: heard.append(said), steps=20
    )
    assert patch.shape == (
        3,
        compute_patch_side(PATCH_AREAS[-1], HEIGHT, WIDTH),
        compute_patch_side(PATCH_AREAS[-1], HEIGHT, WIDTH),
    )
    torch.testing.assert_close(patch, torch.full_like(patch, 255))
    assert heard[0] == ("model: patch 1", 1, 20)
    assert heard[-1] == ("model: patch 1", 20, 20)


def test_training_meets_every_size_and_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[int] = []
    corners: list[Tensor] = []

    def listen(of: LoadedModel, patch: Tensor, *asked: Any) -> Tensor:
        sides.append(asked[2])
        corners.append(asked[3])
        return patch

    monkeypatch.setattr(adversarial_patch, "compute_patch_gradient", listen)
    train_adversarial_patch(subject(), dark(20), 0, silent, steps=40)
    assert set(sides) == {compute_patch_side(area, HEIGHT, WIDTH) for area in PATCH_AREAS}
    assert len(torch.cat(corners).unique(dim=0)) == 40 * adversarial_patch.PATCH_BATCH_SIZE


def test_a_patch_is_a_function_of_its_seed() -> None:
    first, again, other = (
        train_adversarial_patch(subject(), dark(40), seed, silent, steps=2) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_images_that_cannot_be_read_are_not_learned_on() -> None:
    patch = train_adversarial_patch(subject(), dark(20, unreadable=17), 0, silent, steps=1)
    assert patch.isfinite().all()
    with pytest.raises(DataError, match=r"none of the training images .* \(3 tried\)"):
        train_adversarial_patch(subject(), dark(3, unreadable=3), 0, silent, steps=1)


def test_images_without_labels_are_not_learned_on() -> None:
    bare = dark(5)
    bare.labels[1:] = -1
    assert train_adversarial_patch(subject(), bare, 0, silent, steps=1).isfinite().all()
    bare.labels[:] = -1
    with pytest.raises(DataError, match=r"that have labels can be read \(0 tried\)"):
        train_adversarial_patch(subject(), bare, 0, silent, steps=1)


def test_every_patch_hides_the_same_places_of_an_image() -> None:
    of = subject()
    asked = batch(of, 7, 3, 5)
    adversarial = prepare_adversarial_patch(of, dark(20), 2, silent)
    assert NOISE.change is not None
    assert GREY.change is not None
    for area in PATCH_AREAS:
        hidden = [
            (change(asked, area, 2) != asked.images).any(1)
            for change in (adversarial, NOISE.change, GREY.change)
        ]
        assert (
            hidden[0].flatten(1).sum(1).tolist()
            == [compute_patch_side(area, HEIGHT, WIDTH) ** 2] * 3
        )
        assert torch.equal(hidden[0], hidden[1])
        assert torch.equal(hidden[0], hidden[2])
        alone = (GREY.change(batch(of, 3), area, 2) == 127.5).any(1)
        assert torch.equal(alone[0], hidden[0][1])
        assert not torch.equal((GREY.change(asked, area, 3) == 127.5).any(1), hidden[0])


def test_noise_is_one_pattern_for_all_images() -> None:
    asked = batch(subject(), 7, 3)
    assert NOISE.change is not None
    found = []
    for seed in (2, 3):
        patched = NOISE.change(asked, 10.0, seed)
        changed = (patched != asked.images).any(1)
        found += [image[:, where] for image, where in zip(patched, changed, strict=True)]
    assert torch.equal(found[0], found[1])
    assert found[0].std() > 50  # of 255; uniform noise has 74
    assert torch.equal(found[2], found[3])
    assert not torch.equal(found[0], found[2])  # of another seed


def test_a_patch_goes_over_to_other_sizes_and_channels() -> None:
    patch = prepare_adversarial_patch(subject(), dark(20), 0, silent)
    for channels, size in ((1, (19, 23)), (3, (37, 41)), (3, (7, 11))):
        asked = batch(subject("other", channels, size), 1, 2)
        changed = (patch(asked, 5.0, 0) != asked.images).any(1)
        assert changed.flatten(1).sum(1).tolist() == [compute_patch_side(5.0, *size) ** 2] * 2
    colour = torch.rand(3, 2, 2)
    torch.testing.assert_close(match_channels(colour, 1)[0], colour.mean(0))
    assert torch.equal(match_channels(colour[:1], 3)[2], colour[0])


def test_each_models_patch_is_tried_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adversarial_patch, "NUM_PATCH_STEPS", 20)
    subjects = [subject("a"), subject("b", size=(29, 31))]
    rows = measure_robustness(subjects, dark(7), [ADVERSARIAL], (0, 1), training=dark(20))
    patched = [row for row in rows if row["level"] > 0]
    assert len(patched) == 2 * 2 * 2 * len(PATCH_AREAS)  # models, patches' models, seeds
    pairs = {(row["model"], row["prepared_on"]) for row in patched}
    assert pairs == {("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")}
    assert {row["accuracy"] for row in rows if row["level"] == 0} == {1.0}


@pytest.mark.parametrize("side", [1, 4, 11, 12, 17])
def test_a_patch_is_resized_as_torch_resizes_images(side: int) -> None:
    patch = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(1))
    wanted = nn.functional.interpolate(patch[None], (side, side), mode="bilinear", antialias=True)
    torch.testing.assert_close(resize_patch(patch, side), wanted[0])
    if side == 12:
        assert torch.equal(resize_patch(patch, side), patch)


def test_patches_are_asked_for_by_name_and_the_adversarial_one_goes_over() -> None:
    assert not any(found.usual for found in PATCH_PERTURBATIONS)
    assert [found.transfers for found in PATCH_PERTURBATIONS] == [True, False, False]
    assert ADVERSARIAL.prepare is prepare_adversarial_patch
    assert len({found.levels for found in PATCH_PERTURBATIONS}) == 1
