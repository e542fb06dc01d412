"""What is not a sound image: refused in one line by a status below 500, and the app goes on."""

from __future__ import annotations

import io
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from asked import App, photo
from PIL import Image

from patchwords.data import decode

FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def png(width: int, height: int, *chunks: tuple[bytes, bytes], pixels: bytes = b"") -> bytes:
    """A PNG whose header says what it likes."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        # Always of the same date: the bytes are a test's name, in each of several processes.
        archive.writestr(zipfile.ZipInfo("photo.png"), photo())
    return file.getvalue()


HEIC = struct.pack(">I", 24) + b"ftypheic" + bytes(4) + b"mif1heic" + bytes(64)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"", 400, "empty file (0 bytes)"),
        (photo()[:200], 400, "truncated"),
        (photo(kind="JPEG")[:400], 400, "truncated"),
        (photo()[:41] + b"\xff" * 400, 400, ""),
        (b"\xff\xd8\xff", 400, ""),
        (b"<html><script>alert(1)</script></html>", 400, "not an image"),
        (SVG, 400, "not an image"),
        (EPS, 400, "not an image"),
        (b"%PDF-1.7\n", 400, "not an image"),
        (b"http://169.254.169.254/latest/meta-data", 400, "not an image"),
        (b"/etc/passwd", 400, "not an image"),
        (zipped(), 400, "not an image"),
        (bytes(999), 400, "not an image"),
        (png(100_000, 100_000), 413, "too large"),
        (png(9_000, 6_000), 413, "the image has 54,000,000 pixels, the maximum is 50,000,000"),
        (png(0, 9), 400, ""),
        (png(2**31 - 1, 2**31 - 1), 413, "too large"),
        (png(4, 4), 400, ""),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_no_sound_image(app: App, data: bytes, status: int, said: str) -> None:
    for answer in (app.predict(data), app.look(data)):
        assert answer.status_code == status
        assert said in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
    assert app.calls == 0  # the model never sees it
    assert app.predict(photo()).status_code == 200


def test_a_bomb_is_not_decoded_to_learn_its_orientation(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PNG may have EXIF behind its pixels: to look for it would unpack them all."""

    def never(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(Image.core, "zip_decoder", never)
    bomb = png(9_000, 6_000, pixels=bytes(2**20)) + b"eXIf"
    assert app.predict(bomb).status_code == 413


def test_pixels_are_counted_before_they_are_decoded(start: Callable[..., App]) -> None:
    app = start(pixels=37 * 23)
    assert app.predict(photo(size=(37, 23))).status_code == 200
    assert app.predict(photo(size=(37, 24))).status_code == 413


def test_of_many_frames_the_first_is_seen(app: App) -> None:
    frames = [Image.open(io.BytesIO(photo(seed))).convert("P") for seed in range(60)]
    file, single = io.BytesIO(), io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    frames[0].save(single, "GIF")
    assert app.predict(file.getvalue()).json() == app.predict(single.getvalue()).json()


def test_heic_without_its_package(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    decode._formats.cache_clear()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    answer = app.predict(HEIC)
    decode._formats.cache_clear()
    assert answer.status_code == 400
    assert answer.json()["error"] == "HEIC image: to read it, pip install pillow-heif"


def test_broken_heic(app: App) -> None:
    pytest.importorskip("pillow_heif")
    assert app.predict(HEIC).status_code == 400


PART = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n%s\r\n%s\r\n'
FILENAME = b'; filename="a"'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no file in the field 'file'"),
        (b"no form at all", ""),
        (b"--x--\r\n", "no file in the field 'file'"),
        (PART % (b"photo", FILENAME, b"", b"z") + b"--x--\r\n", "no file in the field 'file'"),
        (PART % (b"file", b"", b"", b"/etc/passwd") + b"--x--\r\n", "no file in the field"),
        (PART % (b"file", FILENAME, b"", b"") + b"--x--\r\n", "empty file (0 bytes)"),
        (PART % (b"file", FILENAME, b"", b"z"), ""),
        (PART % (b"file", FILENAME, b"", b"z") * 2 + b"--x--\r\n", "Too many files"),
        (PART % (b"a", b"", b"", b"z") * 9 + b"--x--\r\n", "Too many fields"),
        (PART % (b"a", b"", b"", b"z" * 2**17) + b"--x--\r\n", "maximum size"),
        (PART % (b"file", FILENAME, b"X: " + b"y" * 2**17 + b"\r\n", b"z") + b"--x--\r\n", ""),
        (PART % (b"file", FILENAME, b"X: y\r\n" * 2**12, b"z") + b"--x--\r\n", ""),
        (b"--x\r\n\r\nz\r\n--x--\r\n", ""),
    ],
)
def test_no_sound_form(app: App, body: bytes, said: str) -> None:
    answer = app.client.post("/predict", content=body, headers=FORM)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert app.predict(photo()).status_code == 200


@pytest.mark.parametrize(
    "boundary", ["", "; boundary=", "; boundary=%00", "; boundary=" + "é" * 99]
)
def test_no_sound_boundary(app: App, boundary: str) -> None:
    headers = {"Content-Type": f"multipart/form-data{boundary}".encode()}
    answer = app.client.post("/predict", content=photo(), headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/json", "application/x-www-form-urlencoded", "text/html"]
)
def test_other_types_are_not_read(app: App, kind: str) -> None:
    answer = app.client.post("/predict", content=photo(), headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "send an image as the body" in answer.json()["error"]


def test_nothing_goes_to_the_disk(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a file was made")

    for name in ("NamedTemporaryFile", "TemporaryFile", "mkstemp", "mkdtemp"):
        monkeypatch.setattr(tempfile, name, never)
    image = Image.effect_noise((1000, 1000), 80)  # noise: larger than what forms spool by default
    file = io.BytesIO()
    image.save(file, "PNG")
    assert 2**20 > len(file.getvalue()) > 9e5
    form = app.client.post("/predict", files={"file": file.getvalue() + bytes(10**5)})
    assert form.status_code == 413
    large = app.client.post("/predict", files={"file": file.getvalue()})
    assert large.status_code == 200


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"height": "13", "width": "20"}, "size 13x20 is not offered: the model takes 8x12 to"),
        ({"height": "-12"}, "height must be whole numbers"),
        ({"height": "9" * 5000}, "height must be whole numbers"),
        ({"height": "१२"}, "height must be whole numbers"),
        ({"tiles": "3"}, "3x3 tiles do not divide 12x20 pixels"),
        ({"tiles": "0"}, "0x0 tiles do not divide"),
        ({"hidden": "15"}, "patch 15 does not exist: there are 15"),
        ({"hidden": "1,x"}, "hidden must be whole numbers"),
        ({"seed": "2147483648"}, "seed must be below 2147483648"),
    ],
)
def test_wrong_wishes(app: App, fields: dict[str, str], said: str) -> None:
    answer = app.look(photo(), **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
