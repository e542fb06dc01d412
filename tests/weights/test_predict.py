"""From photos, in every form that they come in, to named scores."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from patchwords.data.decode import decode_image
from patchwords.data.preprocess import Preprocess
from patchwords.errors import DataError
from patchwords.models.vit import ViT
from patchwords.weights.pretrained import PREDICT_BATCH_SIZE, Pretrained

LABELS = tuple("abcdefg")


@pytest.fixture
def pretrained(tiny: Callable[..., ViT]) -> Pretrained:
    preprocess = Preprocess((12, 20), crop_fraction=0.8, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    return Pretrained(tiny(), preprocess, LABELS)


def photo(mode: str = "RGB", size: tuple[int, int] = (37, 29)) -> Image.Image:
    """A gradient with one bright corner: no two ways up look alike."""
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 200, size[1]))
    pixels = np.stack([x, y, 255 - x], axis=-1).astype(np.uint8)
    pixels[: size[1] // 3, : size[0] // 4] = 255
    image = Image.fromarray(pixels)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(y.astype(np.uint8)))
        return image
    if mode == "I;16":
        return Image.fromarray((x * 257).astype(np.uint16))
    if mode == "F":
        return Image.fromarray((x / 255).astype(np.float32))
    return image.convert(mode)


def encode(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def by_hand(pretrained: Pretrained, data: bytes) -> np.ndarray:
    """The written-out way: decode, cut, normalise, model, softmax."""
    p = pretrained.preprocess
    pixels = np.asarray(p.resize_and_crop(np.array(decode_image(data)))).astype(
        np.float64
    )  # [H, W, C]
    x = (pixels / 255 - np.array(p.mean)) / np.array(p.std)
    images = torch.from_numpy(x).permute(2, 0, 1)[None].float()  # [1, C, H, W]
    with torch.no_grad():
        return pretrained.model(images).double().softmax(-1)[0].numpy()


def scores(answer: list[dict[str, Any]]) -> np.ndarray:
    """[classes], in the order of the labels."""
    by_label = {entry["label"]: entry["score"] for entry in answer}
    return np.array([by_label[label] for label in LABELS])


def test_the_answer_is_that_of_a_forward_pass_by_hand(pretrained: Pretrained) -> None:
    data = encode(photo())
    answer = pretrained.predict(data, top_k=7)
    # Float32 against float64 up to the model's input.
    np.testing.assert_allclose(scores(answer), by_hand(pretrained, data), atol=1e-5)
    ordered = [entry["score"] for entry in answer]
    assert ordered == sorted(ordered, reverse=True)
    assert sum(ordered) == pytest.approx(1.0, abs=1e-6)
    assert all(type(entry["score"]) is float for entry in answer)  # so that JSON takes it


def test_every_form_of_an_image_is_answered_alike(pretrained: Pretrained, tmp_path: Path) -> None:
    image = photo()
    path = tmp_path / "photo.png"
    image.save(path)
    forms = [str(path), path, path.read_bytes(), image, np.asarray(image), Image.open(path)]
    answers = [pretrained.predict(form) for form in forms]
    assert all(answer == answers[0] for answer in answers)
    several = pretrained.predict(tuple(forms), top_k=7)
    assert several == pretrained.predict(iter(forms), top_k=7)
    # A product may round the rows of a batch differently, in the last digit of float32.
    for answer in several:
        assert [one["label"] for one in answer] == [one["label"] for one in several[0]]
        assert scores(answer) == pytest.approx(scores(several[0]), abs=1e-6)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_large_jpeg_is_answered_alike_as_a_path_an_image_and_an_array(
    pretrained: Pretrained, mode: str, tmp_path: Path
) -> None:
    """281 is no multiple of 8: decoded at a quarter the photo would be a third of a pixel wider."""
    noise = np.random.default_rng(0).integers(0, 256, (281, 331, 3), dtype=np.uint8)
    path = tmp_path / "photo.jpg"
    Image.fromarray(noise).convert(mode).save(path, quality=90)
    array = np.array(Image.open(path).convert("RGB"))
    answer = pretrained.predict(path, top_k=7)
    assert pretrained.predict(Image.open(path), top_k=7) == answer
    assert pretrained.predict(array, top_k=7) == answer
    batch = pretrained.preprocess([path, path.read_bytes(), Image.open(path), array])
    assert all(torch.equal(image, batch[0]) for image in batch)


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "I;16"])
def test_a_pil_image_of_any_mode_is_answered_as_its_file(pretrained: Pretrained, mode: str) -> None:
    image = photo(mode)
    data = encode(image)
    assert pretrained.predict(image) == pretrained.predict(data)
    np.testing.assert_allclose(
        scores(pretrained.predict(image, top_k=7)), by_hand(pretrained, data), atol=1e-5
    )


@pytest.mark.parametrize(("mode", "kind"), [("CMYK", "TIFF"), ("F", "TIFF"), ("YCbCr", "TIFF")])
def test_modes_that_png_does_not_know(pretrained: Pretrained, mode: str, kind: str) -> None:
    image = photo(mode)
    assert pretrained.predict(image) == pretrained.predict(encode(image, kind))


def test_transparency_lies_over_white(pretrained: Pretrained) -> None:
    clear = Image.new("RGBA", (30, 30), (200, 10, 10, 0))
    white = Image.new("RGB", (30, 30), "white")
    assert pretrained.predict(clear) == pretrained.predict(white)
    palette = Image.new("P", (30, 30), 3)
    palette.putpalette([9] * 768)
    palette.info["transparency"] = 3
    assert pretrained.predict(palette) == pretrained.predict(white)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_upright(pretrained: Pretrained, orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    data = encode(photo(), "PNG", exif=exif)
    opened = Image.open(io.BytesIO(data))
    assert pretrained.predict(opened) == pretrained.predict(data)
    upright = orientation == 1
    assert (pretrained.predict(data) == pretrained.predict(photo())) is upright


def test_one_and_several(pretrained: Pretrained) -> None:
    one = pretrained.predict(photo())
    assert [entry.keys() for entry in one] == [{"label", "score"}] * 5
    assert pretrained.predict([photo()]) == [one]
    assert pretrained.predict([]) == []
    assert len(pretrained.predict(photo(), top_k=100)) == 7
    assert pretrained.predict(photo(), top_k=1) == one[:1]


def test_many_images_are_answered_in_order(pretrained: Pretrained) -> None:
    count = 2 * PREDICT_BATCH_SIZE + 3
    images = [Image.new("RGB", (20, 12), (i * 3, 255 - i, i)) for i in range(count)]
    answers = pretrained.predict(images, top_k=7)
    assert len(answers) == count
    for index in (0, PREDICT_BATCH_SIZE - 1, PREDICT_BATCH_SIZE, count - 1):
        alone = pretrained.predict(images[index], top_k=7)
        # Matrix products of another batch size; float32.
        np.testing.assert_allclose(scores(answers[index]), scores(alone), atol=1e-5)


def test_predicting_leaves_no_gradient_and_no_mode(pretrained: Pretrained) -> None:
    images = torch.zeros(2, 3, 12, 20, dtype=torch.uint8)
    found = pretrained.scores(images)
    assert (found.shape, found.dtype) == ((2, 7), np.float32)
    assert all(p.grad is None for p in pretrained.model.parameters())


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("nowhere.png", "nowhere.png: No such file"),
        (b"", "empty"),
        (b"not an image", "not an image"),
        (np.zeros((12, 20, 3)), "an array of float64 .* is not an image"),
        (np.zeros((12, 20), np.uint8), r"\[12, 20\] is not an image"),
        (np.zeros((2, 12, 20, 3), np.uint8), "is not an image"),
        ([torch.zeros(3, 12, 20)], "a Tensor is not an image: give a path"),
        ([None], "a NoneType is not an image"),
    ],
)
def test_what_is_no_image(pretrained: Pretrained, image: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        pretrained.predict(image)
    assert "\n" not in str(caught.value)


def test_a_truncated_image_that_pil_has_opened(pretrained: Pretrained) -> None:
    data = encode(photo(size=(300, 200)), "JPEG")
    opened = Image.open(io.BytesIO(data[: len(data) // 2]))  # reads no pixels
    with pytest.raises(DataError, match="truncated"):
        pretrained.predict(opened)
    with pytest.raises(DataError, match="truncated"):
        pretrained.predict(data[: len(data) // 2])
