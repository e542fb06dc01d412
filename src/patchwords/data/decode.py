"""Image decoding: encoded bytes to an upright RGB image, as browsers show it.

Orientation is that of EXIF; transparency is put over white; grey of 16 bits keeps its range; of an
animation the first frame counts. A fault is a `DataError` with the reason only: the caller, who
knows the file's name, puts it in front.

Sizes: W H of the upright image, h w as stored in the file.
"""

from __future__ import annotations

import base64
import io
import struct
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from patchwords.errors import DataError

if TYPE_CHECKING:
    ImageLike = str | Path | bytes | Image.Image | np.ndarray  # a path, or what is in a file

# JPEG by simplejpeg: Pillow's pixels, to the bit, without its copies.
#
# Both are libjpeg-turbo; Pillow decodes row by row into four bytes a pixel, and its pixels are copied
# once more into an array. simplejpeg is strict, so every file that libjpeg warns of (it ends early, or
# has bytes that make no sense) is left to Pillow, which reads what can be read and names the fault.
# So only the time depends on simplejpeg.
#
# Other scales were measured and left out: those between 1/2 and 1 take longer than a full decode, and 3/8 longer
# than 1/2 (only the powers of two have SIMD code).


MIN_JPEG_SIDE = 8  # pixels: from here on no two of libjpeg's scales give the same size


def decode_jpeg(data: bytes, width: int, height: int) -> np.ndarray | None:
    """Decode a grey or colour JPEG to uint8 [height, width, 3], as stored: not yet upright.

    Width and height are those of the file at 1/1, 1/2, 1/4 or 1/8. None where this is for Pillow.
    """
    library = _simplejpeg()
    if library is None or min(width, height) < MIN_JPEG_SIDE:
        return None
    try:
        pixels = library.decode_jpeg(data, min_height=height, min_width=width)
    except Exception:  # warnings of libjpeg are errors here; a damaged file may raise anything
        return None
    return pixels if pixels.shape == (height, width, 3) else None


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


# Formats that cameras and browsers write. Others are refused: Pillow would start Ghostscript for EPS.
IMAGE_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "DIB", "TIFF", "GIF", "AVIF", "HEIF")
# Brands in the first box ("ftyp") of the ISO file: HEIC stills and sequences, AVIF, and both.
HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}
AVIF_BRANDS = {b"avif", b"avis"}
PNG_METADATA = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")  # where EXIF or XMP may be
WHITE = (255, 255, 255)

EXIF_TRANSPOSES = {  # EXIF orientation -> what turns the stored picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS_ORIENTATIONS = {5, 6, 7, 8}  # orientations that swap width and height

# Pillow warns of a large image (refused further up only) and of odd metadata: neither is a fault,
# and a data loader that prints once an image is of no use. For its own modules only.
warnings.filterwarnings("ignore", module=r"PIL\.")


class EncodedImage:
    """An encoded image whose header has been read; its pixels are decoded on request.

    Raises DataError with the reason, here and when it is decoded.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.stored = data, _open(data)

    @property
    def size(self) -> tuple[int, int]:
        """(W, H) of the upright image; read it before the image is decoded."""
        image = self.stored
        try:
            width, height = image.size
            if image.format == "TIFF":  # newer Pillows swap the sides in `size`, older ones do not
                tags = image.tag_v2  # type: ignore[attr-defined]
                width, height = tags[ExifTags.Base.ImageWidth], tags[ExifTags.Base.ImageLength]
            sideways = _orientation(image, self.data) in SIDEWAYS_ORIENTATIONS
        except Exception as fault:  # as in `image`
            raise DataError(_reason(fault)) from fault
        return (height, width) if sideways else (width, height)

    def image(self, smallest: int | None = None) -> Image.Image:
        """Decode as `decode_image` does."""
        stored = self.stored
        try:
            if smallest is not None:
                stored.draft(None, (smallest, smallest))  # only JPEG heeds this
            stored.load()
            turn = EXIF_TRANSPOSES.get(_orientation(stored, self.data))
            image = to_rgb(stored)
            return image if turn is None else image.transpose(turn)
        except (DataError, MemoryError):
            raise
        except Exception as fault:  # a decoder fed with damaged bytes may raise anything
            raise DataError(_reason(fault)) from fault

    def pixels(self, smallest: int | None = None) -> np.ndarray:
        """Decode to uint8 [h, w, 3], the pixels of `image`: faster for a sound JPEG."""
        stored = self.stored
        if stored.format not in {"JPEG", "MPO"} or stored.mode not in {"RGB", "L"}:
            return np.array(self.image(smallest))
        if smallest is not None:
            stored.draft(None, (smallest, smallest))  # sets the size; a second call does nothing
        pixels = decode_jpeg(self.data, *stored.size)
        if pixels is None:
            return np.array(self.image(smallest))
        turn = EXIF_TRANSPOSES.get(_orientation(stored, self.data))
        return pixels if turn is None else np.array(Image.fromarray(pixels).transpose(turn))


def decode_image(data: bytes, smallest: int | None = None) -> Image.Image:
    """Decode an image, upright, in mode RGB.

    `smallest` is the shortest side, in pixels, that the caller needs: a JPEG is then decoded at
    1/2, 1/4 or 1/8 of its size where the shortest side stays at or above it (and above half of
    the stored size nothing changes). Raises DataError with the reason.
    """
    return EncodedImage(data).image(smallest)


def read_pixels(image: ImageLike) -> np.ndarray:
    """Read an image in any form as upright RGB pixels, uint8 [h, w, 3].

    `image` is a path, encoded bytes, a PIL image, or a uint8 array [h, w, 3] or [h, w, 1]; all
    forms of one image give the same pixels. Raises DataError with the reason.
    """
    if isinstance(image, bytes):
        return EncodedImage(image).pixels()
    if isinstance(image, str | Path):
        try:
            return EncodedImage(Path(image).read_bytes()).pixels()
        except OSError as error:
            raise DataError(error.strerror or str(error)) from error
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in {1, 3}:
            raise DataError(
                f"an array of {image.dtype} {list(image.shape)} is not an image: give uint8 "
                "[height, width, 3]"
            )
        return np.array(np.broadcast_to(image, (*image.shape[:2], 3)))  # a copy that torch may take
    if not hasattr(image, "convert"):
        raise DataError(
            f"a {type(image).__name__} is not an image: give a path, encoded bytes, a PIL "
            "image, or a uint8 array [height, width, 3]"
        )
    try:
        return np.array(to_rgb(ImageOps.exif_transpose(image)))
    except OSError as error:  # PIL reads the pixels only now
        raise DataError(f"a PIL image cannot be read: {error}") from error


def read_image_size(data: bytes) -> tuple[int, int]:
    """Return (W, H) of the upright image, from the header alone."""
    return EncodedImage(data).size


def count_stored_pixels(data: bytes) -> int:
    """Return h * w as stored; unlike `read_image_size` this never decodes a PNG."""
    image = _open(data)
    return image.width * image.height


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    if image.has_transparency_data:  # alpha, or a colour or palette entry marked as transparent
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (*WHITE, 255))
        return Image.alpha_composite(ground, image).convert("RGB")
    # CMYK too: Pillow has undone the inversion that Adobe's JPEGs carry.
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> np.ndarray:
    """Scale grey of 16 or 32 bits, or of real numbers, to uint8 [h, w].

    16 bits are scaled from their full range. Wider kinds have no white level of their own: numbers
    that fit [0, 1], [0, 255] or [0, 65535] are taken to be of that range, others are stretched
    from their least to their greatest.
    """
    grey = np.asarray(image).astype(np.float64)  # [h, w]
    if image.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    else:
        finite = np.isfinite(grey)
        low, high = (grey[finite].min(), grey[finite].max()) if finite.any() else (0.0, 0.0)
        grey = np.where(finite, grey, low)
        # Pillow before 11 gives the 16 bits of a PNG as "I": never narrower than they are.
        whites = [65535.0] if image.format == "PNG" else [1.0, 255.0, 65535.0]
        if low >= 0.0:
            low, high = 0.0, next((white for white in whites if high <= white), high)
    return np.rint((grey - low) * (255.0 / max(high - low, 1e-12))).astype(np.uint8)


def _open(data: bytes) -> ImageFile.ImageFile:
    """Read the header."""
    if not data:
        raise DataError("empty file (0 bytes)")
    brand = data[8:12] if data[4:8] == b"ftyp" else b""
    try:
        return Image.open(io.BytesIO(data), formats=_formats(brand in HEIF_BRANDS))
    except UnidentifiedImageError as fault:
        if brand in AVIF_BRANDS:
            raise DataError("AVIF, which this Pillow cannot read: pip install -U pillow") from fault
        raise DataError("not an image, or its first bytes are damaged") from fault
    except Image.DecompressionBombError as fault:
        raise DataError(
            f"too large: {fault.args[0].split(', could')[0]}; "
            "if you trust the file, make it smaller"
        ) from fault
    except (DataError, MemoryError):
        raise
    except Exception as fault:  # as in `EncodedImage.image`
        raise DataError(_reason(fault)) from fault


@cache
def _formats(heif: bool) -> tuple[str, ...]:
    """Return the formats to try; pillow-heif is imported with the first HEIC."""
    Image.init()
    if heif:
        try:
            from pillow_heif import register_heif_opener
        except ImportError as fault:
            raise DataError("HEIC image: to read it, pip install pillow-heif") from fault
        register_heif_opener()
    return tuple(name for name in IMAGE_FORMATS if name in Image.OPEN)


def _orientation(image: Image.Image, data: bytes) -> int:
    """Return the EXIF orientation, 1 to 8; 1 after Pillow has loaded a TIFF or HEIF upright."""
    if image.format == "PNG" and not any(mark in data for mark in PNG_METADATA):
        return 1  # asking a PNG for EXIF that it lacks would decode it all
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return 1  # scrambled metadata; the pixels are sound


def _reason(fault: Exception) -> str:
    """Return a decoder's error as one line."""
    text = " ".join(str(fault).split()) or type(fault).__name__
    if any(word in text.lower() for word in ("truncated", "unexpected end", "eof", "incomplete")):
        return f"truncated: {text}"
    return f"damaged: {text}"


LOSSLESS_SIDE = 64  # pixels up to which pages keep an image without loss


def encode_image_url(image: Image.Image, *, lossless: bool | None = None, quality: int = 82) -> str:
    """Encode an image as a data URL: PNG if lossless (default: if small), else JPEG."""
    if lossless is None:
        lossless = max(image.size) <= LOSSLESS_SIDE
    file = io.BytesIO()
    if lossless:
        image.save(file, "PNG")
    else:
        image.save(file, "JPEG", quality=quality)
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
