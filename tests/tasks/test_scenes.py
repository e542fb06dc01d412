"""Photo and mask are cut alike, and metrics of masks are those of their definition."""

from __future__ import annotations

import io

import numpy as np
import pytest
from drawn_scenes import draw_scene
from PIL import Image

from patchwords.data.augment import AugmentSettings
from patchwords.data.preprocess import Preprocess
from patchwords.data.sources.mask_table import IGNORE, MaskTable
from patchwords.tasks.segmentation.metrics import (
    PixelCounts,
    compute_mask_metrics,
    count_confusion,
)
from patchwords.tasks.segmentation.pictures import encode_index_png, overlay_mask
from patchwords.tasks.segmentation.scenes import MaskTransform, SceneTransform, cover_window

SIZE = (24, 40)
PREPROCESS = Preprocess(image_size=SIZE, crop_fraction=1.0)
# Blue, red, green: a mask can be read off the photo itself.
PAINT = np.array([[0, 0, 255], [255, 0, 0], [0, 255, 0]], np.uint8)


def encode(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("scale", [(0.5, 2.0), (0.5, 0.5), (1.0, 1.0), (2.0, 2.0)])
@pytest.mark.parametrize("photo_size", [(60, 100), (100, 60), (24, 40), (9, 13)])
def test_a_mask_is_cut_as_its_photo(
    scale: tuple[float, float], photo_size: tuple[int, int]
) -> None:
    _, mask = draw_scene(1, *photo_size) if min(photo_size) > 20 else (None, blocks(photo_size))
    view = SceneTransform(PREPROCESS, AugmentSettings(scale_range=scale), seed=3)
    target = MaskTransform(view, MaskTable(("ground", "disc", "square"), (0, 1, 2)))
    flips = set()
    for sample in range(6):
        photo = view(encode(PAINT[mask]), 0, sample)
        cut = target(encode(mask), 0, sample, 0)
        assert (photo.shape, cut.shape) == ((*SIZE, 3), SIZE)
        inside = cut != IGNORE
        assert inside.any()
        shown = np.array([1, 2, 0])[photo.argmax(-1)]  # colour that dominates -> class
        agree = (shown == cut)[inside].mean()
        assert agree > (0.75 if max(photo_size) < 20 else 0.9)  # edges are blurred in the photo
        assert (photo[~inside] == 128).all()  # the colour that is zero to the model
        again = view(encode(PAINT[mask]), 0, sample)
        assert (photo == again).all()  # a function of the place
        flips.add(photo.tobytes())
    assert len(flips) > 1


def blocks(size: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(size, np.uint8)
    mask[:, size[1] // 2 :] = 1
    mask[size[0] // 2 :, :] = 2
    return mask


def test_a_photo_of_nearly_the_models_shape_is_one_window() -> None:
    assert cover_window(400, 240, PREPROCESS) == SIZE
    assert cover_window(420, 240, PREPROCESS) == SIZE  # 5 % longer: squashed
    assert cover_window(800, 240, PREPROCESS) == (24, 80)


def test_iou_is_counted_over_all_pixels() -> None:
    random = np.random.default_rng(0)
    counts = PixelCounts(3)
    truths, answers = [], []
    for number in range(5):
        truth = random.integers(0, 3, (8, 9)).astype(np.uint8)
        answer = np.where(random.random((8, 9)) < 0.7, truth, 1).astype(np.uint8)
        truth[0] = IGNORE
        counts.add(str(number), truth, answer)
        truths.append(truth)
        answers.append(answer)
    truth, answer = np.stack(truths), np.stack(answers)
    labelled = truth != IGNORE
    ious = [
        ((truth == k) & (answer == k)).sum() / (((truth == k) | (answer == k)) & labelled).sum()
        for k in range(3)
    ]
    result = compute_mask_metrics(counts, ("a", "b", "c"))
    assert [row["iou"] for row in result["per_class"]] == pytest.approx(ious)
    assert result["miou"]["value"] == pytest.approx(np.mean(ious))
    assert result["miou"]["low"] < result["miou"]["value"] < result["miou"]["high"]
    assert result["pixel_accuracy"]["value"] == pytest.approx((truth == answer)[labelled].mean())
    assert np.array(result["confusion"]).sum() == labelled.sum() == result["pixels"]
    assert count_confusion(truth, answer, 3).sum(1).tolist() == [
        int((truth == k).sum()) for k in range(3)
    ]


def test_a_class_that_is_nowhere_does_not_count() -> None:
    counts = PixelCounts(3)
    for number in range(4):
        truth = np.zeros((4, 4), np.uint8)
        truth[:2] = 1
        counts.add(str(number), truth, truth)
    result = compute_mask_metrics(counts, ("a", "b", "c"))
    assert result["miou"]["value"] == 1.0
    assert result["per_class"][2]["iou"] is None
    assert result["baseline"] == 0.25  # half of the pixels in one of two classes


def test_an_answer_is_an_index_image_with_a_palette() -> None:
    mask = np.array([[0, 1], [2, IGNORE]], np.uint8)
    palette = ((10, 20, 30), (200, 0, 0), (0, 200, 0))
    with Image.open(io.BytesIO(encode_index_png(mask, palette, (5, 0, 9)))) as image:
        assert image.mode == "P"
        assert np.asarray(image).tolist() == [[5, 0], [9, IGNORE]]
        assert np.asarray(image.convert("RGB"))[0].tolist() == [[10, 20, 30], [200, 0, 0]]
    photo = np.full((2, 2, 3), 100, np.uint8)
    shown = overlay_mask(photo, mask, palette)
    assert shown[1, 1].tolist() == [100, 100, 100]  # without a label
    assert shown[0, 1, 0] > 140
