"""What is done to an image before the model sees it, and what the page gets to show."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from asked import TINY, App, photo, subject_of
from PIL import Image

from patchwords.app.edits import (
    ImageEdits,
    apply_edits,
    list_image_sizes,
    list_tilings,
    map_pixels_to_patches,
    patch_grid,
)
from patchwords.interpret.rollout import attention_rollout
from patchwords.models.resnet.config import ResNetConfig, TrunkConfig

RESNET = ResNetConfig(trunk=TrunkConfig(units=(1, 1)), image_size=(40, 24), num_classes=5)
PIXELS = np.random.default_rng(0).integers(1, 256, (12, 20, 3), dtype=np.uint8)


def seen(answer: object) -> np.ndarray:
    """The picture that the page gets -> uint8 [H, W, 3]"""
    head, _, data = answer.json()["picture"].partition(",")  # type: ignore[attr-defined]
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_patches_that_are_hidden_are_black_and_others_are_not() -> None:
    edited = apply_edits(ImageEdits((12, 20), hidden=(1, 14)), PIXELS, (3, 5))
    expected = PIXELS.copy()
    expected[0:4, 4:8] = 0
    expected[8:12, 16:20] = 0
    assert np.array_equal(edited, expected)


def test_cells_cover_sides_that_patches_do_not_divide() -> None:
    found = map_pixels_to_patches((5, 7), (2, 3))
    assert found.tolist() == [[0, 0, 0, 1, 1, 2, 2]] * 3 + [[3, 3, 3, 4, 4, 5, 5]] * 2


def test_tiles_are_all_there_once_in_another_order() -> None:
    edits = ImageEdits((12, 20), tiles=4, seed=3)
    edited = apply_edits(edits, PIXELS, (3, 5))

    def tiles(image: np.ndarray) -> list[bytes]:
        return [
            image[y : y + 3, x : x + 5].tobytes() for y in range(0, 12, 3) for x in range(0, 20, 5)
        ]

    assert tiles(edited) != tiles(PIXELS)
    assert sorted(tiles(edited)) == sorted(tiles(PIXELS))
    assert np.array_equal(edited, apply_edits(edits, PIXELS, (3, 5)))
    other = apply_edits(ImageEdits((12, 20), tiles=4, seed=4), PIXELS, (3, 5))
    assert not np.array_equal(edited, other)


def test_painting_comes_after_shuffling() -> None:
    both = apply_edits(ImageEdits((12, 20), tiles=2, seed=1, hidden=(0,)), PIXELS, (3, 5))
    assert not both[:4, :4].any()
    assert both[4:].all()


def test_nothing_asked_changes_nothing() -> None:
    assert np.array_equal(apply_edits(ImageEdits((12, 20)), PIXELS, (3, 5)), PIXELS)


def test_sizes_keep_the_shape_and_the_own_one() -> None:
    subject = subject_of()
    found = list_image_sizes(subject.model, subject.preprocess)
    assert found == [(8, 12), (12, 20), (16, 28), (20, 32), (24, 40)]
    assert list_tilings((12, 20), (3, 5)) == [2, 4]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TINY.with_settings(mixer="mlp", classifier="gap"), [(12, 20)]),
        (TINY.with_settings(mixer="local", window=3, classifier="gap"), [(12, 20), (16, 28)]),
        (
            RESNET,
            [
                (16, 8),
                (24, 16),
                (32, 16),
                (40, 24),
                (48, 32),
                (56, 32),
                (64, 40),
                (72, 40),
                (80, 48),
            ],
        ),
    ],
    ids=["mlp", "local", "resnet"],
)
def test_a_model_takes_the_sizes_that_are_offered(config: object, expected: object) -> None:
    subject = subject_of(config)  # type: ignore[arg-type]
    found = list_image_sizes(subject.model, subject.preprocess)
    assert found[: len(expected)] == expected  # type: ignore[arg-type]
    for height, width in found:
        images = torch.zeros(1, 3, height, width)
        with torch.inference_mode():
            assert subject.model(images).shape == (1, 5)


def test_the_page_gets_what_the_model_saw(app: App) -> None:
    data = photo(4)
    subject = app.service.loaded
    answer = app.look(data)
    pixels = subject.preprocess.resize_and_crop(np.array(Image.open(io.BytesIO(data))))
    assert np.array_equal(seen(answer), pixels)
    found = answer.json()
    assert (found["size"], found["grid"], found["tilings"]) == ([12, 20], [3, 5], [2, 4])
    assert found["neighbours"] == []
    scores = {one["label"]: one["score"] for one in subject.source.predict(data)}
    again = {one["label"]: one["score"] for one in found["predictions"]}
    assert again == pytest.approx(scores, abs=1e-6)
    images = subject.preprocess.normalise(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])
    rolled = attention_rollout(subject.model, images)[0, 0, 1:]  # the class token's row
    assert found["looked"] == pytest.approx(rolled.tolist(), abs=1e-6)


def test_edits_go_all_the_way(app: App) -> None:
    data = photo(5)
    plain = app.look(data)
    hidden = app.look(data, hidden="0, 7,7")
    expected = seen(plain).copy()
    expected[0:4, 0:4] = 0
    expected[4:8, 8:12] = 0
    assert np.array_equal(seen(hidden), expected)
    assert hidden.json()["predictions"] != plain.json()["predictions"]
    large = app.look(data, height="24", width="40")
    assert seen(large).shape == (24, 40, 3)
    assert (large.json()["grid"], len(large.json()["looked"])) == ([6, 10], 60)
    shuffled = app.look(data, tiles="2", seed="5")
    assert sorted(seen(shuffled).ravel()) == sorted(seen(plain).ravel())
    assert not np.array_equal(seen(shuffled), seen(plain))


def test_a_model_without_attention_says_so(start: Callable[..., App]) -> None:
    subject = subject_of(RESNET)
    app = start(subject)
    about = app.client.get("/model").json()
    assert about["looks"] is False
    assert about["no_look"].startswith("a ResNet has no patches that attend to one another")
    assert about["grid"] == list(patch_grid(subject.model, (40, 24))) == [5, 3]
    found = app.look(photo(), hidden="14").json()
    assert found["looked"] is None
    assert len(found["predictions"]) == 5


def test_grey_models_see_grey(start: Callable[..., App]) -> None:
    app = start(subject_of(TINY.with_settings(channels=1)))
    assert seen(app.look(photo(), hidden="3")).shape == (12, 20)


def test_the_page_knows_the_model(app: App) -> None:
    about = app.client.get("/model").json()
    assert about["name"] == "ViT-tiny/4"
    assert about["classes"] == 5
    assert about["looks"] is True
    assert {"size": [24, 40], "grid": [6, 10]} in about["sizes"]
    assert about["neighbours"] == {"state": "none", "reason": "there are none"}
    assert about["most_bytes"] == app.service.limits.body
