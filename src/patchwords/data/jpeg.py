"""JPEG by simplejpeg: the pixels that Pillow gives, to the bit, without its copies.

Both are libjpeg-turbo; Pillow decodes row by row into four bytes a pixel, and its pixels are copied
once more into an array. Only sound files are taken: simplejpeg is strict, so whatever libjpeg warns
of (a file that ends early, bytes that make no sense) is left to Pillow, which knows what can still
be read and says what is wrong. So nothing but the time depends on simplejpeg being there.

Not here, because measured: scales between 1/2 and 1 take longer than a full decode, and 3/8 longer
than 1/2 (only the powers of two have SIMD code).
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np

MIN_JPEG_SIDE = (
    8  # pixels of each side, from which on no two of libjpeg's scales give the same size
)


def decode_jpeg(data: bytes, width: int, height: int) -> np.ndarray | None:
    """A grey or colour JPEG, not CMYK -> uint8 [height, width, 3], as stored: not yet upright.

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
