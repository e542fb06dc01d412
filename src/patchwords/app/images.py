"""A client's bytes -> an image, or a refusal: sized before they are decoded, and never kept.

The bytes alone decide what they are: no name, no type that the client says, no path, no URL.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

from PIL import Image

from patchwords.app.refused import RequestRefused
from patchwords.data.decode import count_stored_pixels, decode_image
from patchwords.errors import DataError

LARGE_IMAGE_PIXELS = (
    8_000_000  # pixels; of such images one is decoded at a time, as it can take a gigabyte
)
LARGE_IMAGE_LOCK = threading.Lock()


def decode_upload(data: bytes, most_pixels: int, smallest: int) -> Image.Image:
    """The image, upright, in mode RGB.

    `smallest` is the shortest side, in pixels, that the model needs: see `data.decode`. Raises
    Refused: 413 for more pixels than allowed, 400 for all else that is no sound image.
    """
    try:
        pixels = count_stored_pixels(data)
        if pixels > most_pixels:
            raise RequestRefused(
                413,
                f"the image has {pixels:,} pixels; at most {most_pixels:,} are taken: make it "
                "smaller",
            )
        with LARGE_IMAGE_LOCK if pixels > LARGE_IMAGE_PIXELS else nullcontext():
            return decode_image(data, smallest)
    except DataError as error:
        said = " ".join(str(error).split())
        raise RequestRefused(413 if said.startswith("too large") else 400, said) from error
    except MemoryError as error:
        raise RequestRefused(413, "the image takes more memory than there is") from error
