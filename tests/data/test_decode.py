"""Every image that a camera or a browser writes comes out upright, in RGB, over white."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from patchwords.data.decode import EXIF_TRANSPOSES, decode_image, read_image_size
from patchwords.errors import DataError

W, H = 53, 37  # primes: swapped sides cannot cancel
RED, BLUE = (200, 30, 20), (10, 40, 220)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def scene(width: int = W, height: int = H) -> Image.Image:
    """Smooth, and different in every corner, so that every flip shows."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 255 * x / (width - 1), 255 * y / (height - 1)
    return Image.fromarray(np.stack([red, green, 0 * x + 60], axis=-1).astype(np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


def furthest(a: Image.Image, b: Image.Image) -> int:
    assert a.size == b.size
    return int(np.abs(pixels(a) - pixels(b)).max())


LOSSLESS = [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})]


@pytest.mark.parametrize(("kind", "options"), LOSSLESS, ids=[kind for kind, _ in LOSSLESS])
def test_lossless_formats_come_back_exactly(kind: str, options: dict[str, object]) -> None:
    data = encode(scene(), kind, **options)
    image = decode_image(data)
    assert image.mode == "RGB"
    assert furthest(image, scene()) == 0
    assert read_image_size(data) == (W, H)


def test_jpeg_is_near() -> None:
    # Quality 95 without chroma subsampling: quantisation of a smooth scene stays below 6 levels.
    image = decode_image(encode(scene(), "JPEG", quality=95, subsampling=0))
    assert image.mode == "RGB"
    assert furthest(image, scene()) < 6


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(kind: str, orientation: int) -> None:
    """A photo stored as a camera held sideways stores it is shown as the scene was."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    undo = {6: 8, 8: 6}.get(orientation, orientation)  # the others are their own inverses
    stored = scene() if undo == 1 else scene().transpose(EXIF_TRANSPOSES[undo])
    options = {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}, "JPEG": {"quality": 98}}[kind]
    data = encode(stored, kind, exif=exif, **options)
    image = decode_image(data)
    assert read_image_size(data) == image.size == (W, H)
    assert furthest(image, scene()) < 12  # JPEG with subsampled colour; a flip differs by > 200
    assert furthest(image, ImageOps.exif_transpose(Image.open(io.BytesIO(data)))) == 0


def test_orientation_holds_for_a_scaled_jpeg() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(scene(640, 320).transpose(EXIF_TRANSPOSES[8]), "JPEG", exif=exif, quality=95)
    image = decode_image(data, smallest=80)
    assert image.size == (160, 80)
    assert furthest(image, scene(640, 320).resize((160, 80), Image.Resampling.BOX)) < 12


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_orientation_out_of_range_means_none(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert decode_image(encode(scene(), "JPEG", exif=exif)).size == (W, H)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_scrambled_exif_does_not_lose_the_photo() -> None:
    data = encode(scene(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff garbage")
    assert decode_image(data).size == read_image_size(data) == (W, H)


def test_orientation_of_a_png_that_puts_exif_last() -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    data = encode(scene(), "PNG", exif=exif)
    at = data.index(b"eXIf") - 4
    length = 12 + int.from_bytes(data[at : at + 4], "big")
    end = data.index(b"IEND") - 4
    moved = data[:at] + data[at + length : end] + data[at : at + length] + data[end:]
    assert read_image_size(moved) == decode_image(moved).size == (H, W)


MODES: dict[str, tuple[Callable[[], Image.Image], tuple[int, int, int]]] = {
    "grey": (lambda: Image.new("L", (5, 3), 90), (90, 90, 90)),
    "one bit": (lambda: Image.new("1", (5, 3), 1), (255, 255, 255)),
    "palette": (lambda: Image.new("RGB", (5, 3), RED).convert("P", palette=1), RED),
    # over white: 255 + (value - 255) * alpha / 255
    "grey, half clear": (lambda: Image.new("LA", (5, 3), (55, 51)), (215, 215, 215)),
    "half clear": (lambda: Image.new("RGBA", (5, 3), (55, 155, 255, 51)), (215, 235, 255)),
    "all clear": (lambda: Image.new("RGBA", (5, 3), (0, 0, 0, 0)), (255, 255, 255)),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_png(mode: str) -> None:
    make, expected = MODES[mode]
    image = decode_image(encode(make(), "PNG"))
    assert image.mode == "RGB"
    # Exact to rounding, but that the web's palette has no nearer red than this.
    tolerance = 30 if mode == "palette" else 1
    assert np.abs(pixels(image) - expected).max() <= tolerance


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_clear_palette_entry_is_white(kind: str) -> None:
    image = Image.new("P", (5, 3), 0)
    image.putpalette([*RED, *BLUE])
    image.putpixel((4, 2), 1)
    found = pixels(decode_image(encode(image, kind, transparency=0)))
    assert tuple(found[0, 0]) == (255, 255, 255)
    assert tuple(found[2, 4]) == BLUE


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_clear_colour_of_png_is_white(mode: str) -> None:
    clear: int | tuple[int, ...] = 90 if mode == "L" else RED
    image = Image.new(mode, (5, 3), clear)
    image.putpixel((4, 2), 0 if mode == "L" else BLUE)  # type: ignore[arg-type]
    found = pixels(decode_image(encode(image, "PNG", transparency=clear)))
    assert tuple(found[0, 0]) == (255, 255, 255)
    assert tuple(found[2, 4]) == ((0, 0, 0) if mode == "L" else BLUE)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(kind: str) -> None:
    grey = np.array([[0, 257, 12850], [32896, 65278, 65535]], dtype=np.uint16)
    found = pixels(decode_image(encode(Image.fromarray(grey), kind)))
    assert np.array_equal(found[..., 0], [[0, 1, 50], [128, 254, 255]])
    assert np.array_equal(found[..., 0], found[..., 2])


def test_big_endian_sixteen_bits() -> None:
    grey = Image.frombytes("I;16B", (2, 1), bytes([0x80, 0x80, 0xFF, 0xFF]))
    assert np.array_equal(pixels(decode_image(encode(grey, "TIFF")))[0, :, 0], [128, 255])


REALS = [
    ([0.0, 0.2, 1.0], [0, 51, 255]),
    ([0.0, 51.0, 255.0], [0, 51, 255]),
    ([0.0, 13107.0, 65535.0], [0, 51, 255]),
    ([-5.0, -4.0, 0.0], [0, 51, 255]),
    ([0.0, np.nan, 1.0], [0, 0, 255]),
    ([7e9, 7e9, 7e9], [255, 255, 255]),
    ([-7.0, -7.0, -7.0], [0, 0, 0]),
]


@pytest.mark.parametrize(("values", "expected"), REALS)
def test_real_numbers_keep_their_range(values: list[float], expected: list[int]) -> None:
    image = Image.fromarray(np.array([values], dtype=np.float32))
    assert np.array_equal(pixels(decode_image(encode(image, "TIFF")))[0, :, 0], expected)


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr"])
def test_other_colour_spaces(mode: str) -> None:
    for kind in ("JPEG", "TIFF"):
        image = decode_image(encode(scene().convert(mode), kind, quality=98))
        assert image.mode == "RGB"
        assert furthest(image, scene()) < 16, kind  # subsampled colour; an inversion gives > 200


def test_ycck_jpeg_of_photoshop() -> None:
    """A CMYK file relabelled as YCCK (transform 2 in Adobe's marker): a known wrong colour.

    No ink is stored as 255 in all four. Read as Y = Cb = Cr = 255 it is R 255, G 121, B 255, whose
    inversion is stored C 0, M 134, Y 0: ink 255, 121, 255 and no black, so the colour (0, 134, 0).
    """
    data = encode(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), "JPEG", quality=98)
    transform = data.index(b"Adobe") + 11
    assert data[transform] == 0
    ycck = data[:transform] + b"\x02" + data[transform + 1 :]
    assert np.abs(pixels(decode_image(data)) - 255).max() <= 1
    assert np.abs(pixels(decode_image(ycck)) - (0, 134, 0)).max() <= 2


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (5, 3), colour) for colour in (RED, BLUE, BLUE)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert tuple(pixels(decode_image(data))[0, 0]) == RED


def test_multi_picture_jpeg_of_phones() -> None:
    frames = [scene(), Image.new("RGB", (5, 3), BLUE)]
    data = encode(frames[0], "MPO", save_all=True, append_images=frames[1:], quality=95)
    assert furthest(decode_image(data), scene()) < 16


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif() -> None:
    data = encode(scene(), "AVIF", quality=95)
    assert furthest(decode_image(data), scene()) < 16
    assert read_image_size(data) == (W, H)


@pytest.mark.parametrize("orientation", [1, 6])
def test_heic(orientation: int) -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = scene() if orientation == 1 else scene().transpose(EXIF_TRANSPOSES[8])
    file = io.BytesIO()
    pillow_heif.from_pillow(stored).save(file, quality=95, exif=exif.tobytes())
    image = decode_image(file.getvalue())
    assert read_image_size(file.getvalue()) == image.size == (W, H)
    assert furthest(image, scene()) < 24


def test_heic_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    from patchwords.data import decode as module

    module._formats.cache_clear()
    with pytest.raises(DataError, match="pip install pillow-heif"):
        decode_image(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic")
    module._formats.cache_clear()


@pytest.mark.parametrize("smallest", [1, 19, 20, 21, 39, 40, 41, 79, 80, 81, 159, 160, 500])
def test_scaled_decode_is_never_below_what_is_needed(smallest: int) -> None:
    width, height = 241, 160
    image = decode_image(encode(scene(width, height), "JPEG", quality=95), smallest)
    least = min(image.size)
    assert least >= min(smallest, height)
    assert least < 2 * smallest or least == 20  # 1/8 is the smallest scale of the format
    # Scaled by whole blocks, rounded up: within a pixel of the same shape.
    assert abs(image.width / image.height - width / height) < 0.06


def test_smallest_leaves_other_formats_alone() -> None:
    assert decode_image(encode(scene(), "PNG"), smallest=4).size == (W, H)


def damaged() -> dict[str, tuple[bytes, str]]:
    noisy = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    cases = {
        "empty": (b"", "empty file"),
        "text": (b"Not Found: /photo.jpg", "not an image"),
        "zeros": (b"\x00" * 500, "not an image"),
        "start of a JPEG": (b"\xff\xd8\xff\xe0", "truncated|damaged|not an image"),
        "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    }
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"):
        data = encode(noisy, kind)
        cases[f"half a {kind}"] = (data[: len(data) // 2], "truncated|damaged|not an image")
    return cases


@pytest.mark.parametrize("case", damaged())
def test_damaged_images_are_named_so(case: str) -> None:
    data, reason = damaged()[case]
    for smallest in (None, 8):
        with pytest.raises(DataError, match=reason) as caught:
            decode_image(data, smallest)
        assert "\n" not in str(caught.value)


def test_truncated_jpeg_says_truncated() -> None:
    data = encode(scene(400, 300), "JPEG")
    for smallest in (None, 32):  # a scaled decode reads the whole file too
        with pytest.raises(DataError, match="truncated"):
            decode_image(data[: len(data) * 3 // 4], smallest)


def test_decompression_bomb_is_refused() -> None:
    data = encode(Image.new("1", (20_000, 20_000)), "PNG")
    assert len(data) < 100_000
    for read in (decode_image, read_image_size):
        with pytest.raises(DataError, match=r"too large.*400000000 pixels"):
            read(data)


def test_nothing_is_printed() -> None:
    """In a process of its own, since pytest catches warnings before they are printed."""
    program = """
import io
from PIL import Image
from patchwords.data.decode import decode_image
file = io.BytesIO()
Image.new("1", (12000, 9000)).save(file, "PNG")  # larger than Pillow's first limit: it warns
decode_image(file.getvalue())
file = io.BytesIO()
image = Image.new("P", (5, 3)); image.putpalette([1, 2, 3] * 256)
image.save(file, "PNG", transparency=bytes([0, 128] * 128))  # Pillow warns of this too
decode_image(file.getvalue())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
