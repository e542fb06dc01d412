"""JPEG pixels are those of Pillow, to the bit, with simplejpeg and without; so are the faults."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from patchwords.data import decode as jpeg
from patchwords.data.decode import EXIF_TRANSPOSES, EncodedImage, decode_image
from patchwords.errors import DataError

W, H = 211, 149  # primes: no scale divides them


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the library, and as on a machine that lacks it."""
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
    else:
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    jpeg._simplejpeg.cache_clear()
    yield request.param
    jpeg._simplejpeg.cache_clear()


def photo(width: int = W, height: int = H) -> Image.Image:
    """Smooth shapes with noise on them: every coefficient of a block is used."""
    rng = np.random.default_rng(11)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8)).resize((width, height))
    noisy = np.asarray(coarse).astype(int) + rng.integers(-20, 21, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def as_rgb_by_hand(data: bytes) -> bytes:
    """The same file with its three components said to be R, G and B: Adobe's transform 0."""
    marker = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
    return data[:2] + marker + data[2:]


KINDS = {
    "4:2:0": encode(photo(), subsampling=2, quality=90),
    "4:2:2": encode(photo(), subsampling=1),
    "4:4:4": encode(photo(), subsampling=0),
    "progressive": encode(photo(), progressive=True),
    "grey": encode(photo().convert("L")),
    "CMYK": encode(photo().convert("CMYK")),
    "RGB": as_rgb_by_hand(encode(photo(), subsampling=0)),
    "of a phone": encode(photo(), "MPO", save_all=True, append_images=[photo(8, 8)]),
}


@pytest.mark.parametrize("smallest", [None, 80, 40, 19, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_pillows(decoder: str, kind: str, smallest: int | None) -> None:
    pixels = EncodedImage(KINDS[kind]).pixels(smallest)
    assert (pixels.dtype, pixels.flags.writeable) == (np.uint8, True)
    np.testing.assert_array_equal(pixels, np.asarray(decode_image(KINDS[kind], smallest)))


def test_simplejpeg_is_used(decoder: str) -> None:
    """Else everything above would hold, and nothing be faster."""
    for kind, data in KINDS.items():
        image = EncodedImage(data)
        image.pixels(40)
        pillow = image.stored.tile == []  # Pillow has loaded it
        assert pillow == (decoder == "Pillow" or kind == "CMYK"), kind


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_upright_after_its_size_was_asked_for(decoder: str, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = EncodedImage(encode(photo(), kind, exif=exif))
    assert image.size == ((W, H) if orientation < 5 else (H, W))
    pixels = image.pixels()
    turn = EXIF_TRANSPOSES.get(orientation)
    plain = Image.fromarray(EncodedImage(encode(photo(), kind)).pixels())
    np.testing.assert_array_equal(pixels, plain if turn is None else plain.transpose(turn))


@pytest.mark.parametrize("smallest", [None, 1, 2, 3, 5, 8, 11])
def test_tiny_images(decoder: str, smallest: int | None) -> None:
    """Where several of libjpeg's scales give the same size, the one that Pillow takes counts."""
    for width in (1, 2, 3, 5, 7, 8, 9, 13, 16, 23):
        for height in (1, 3, 5, 7, 9, 17):
            data = encode(photo(width, height), quality=95)
            expected = np.asarray(decode_image(data, smallest))
            np.testing.assert_array_equal(EncodedImage(data).pixels(smallest), expected)


def result(data: bytes, smallest: int | None, fast: bool) -> np.ndarray | str:
    try:
        image = EncodedImage(data)
        return image.pixels(smallest) if fast else np.asarray(image.image(smallest))
    except DataError as fault:
        return str(fault)


@pytest.mark.parametrize("smallest", [None, 30])
@pytest.mark.parametrize("kind", ["4:2:0", "progressive", "grey"])
def test_faults_are_pillows(decoder: str, kind: str, smallest: int | None) -> None:
    """Cut short, without its end, or with bytes changed: the same pixels or the same reason."""
    data, rng, readable = KINDS[kind], np.random.default_rng(2), 0
    damaged = [data[:-2], data[:-40], data[: len(data) // 2], data[: len(data) * 9 // 10]]
    for _ in range(30):
        changed = bytearray(data)
        for at in rng.integers(len(data) // 4, len(data), 3):
            changed[at] ^= int(rng.integers(1, 256))
        damaged.append(bytes(changed))
    for case in damaged:
        ours, pillows = (result(case, smallest, fast) for fast in (True, False))
        assert type(ours) is type(pillows)
        np.testing.assert_array_equal(ours, pillows)
        readable += not isinstance(ours, str)
    assert readable >= 10
    for cut_short in damaged[1:4]:
        with pytest.raises(DataError, match="truncated"):
            EncodedImage(cut_short).pixels(smallest)
