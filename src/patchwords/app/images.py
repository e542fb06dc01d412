"""A client's bytes -> an image, or a refusal: sized before they are decoded, and never kept.

The bytes alone decide what they are: no name, no type that the client says, no path, no URL.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

from PIL import Image

from patchwords.app.refused import Refused
from patchwords.data.decode import decode, stored_pixels
from patchwords.errors import DataError

LARGE = 8_000_000  # pixels; of such images one is decoded at a time, as it can take a gigabyte
ONE_AT_A_TIME = threading.Lock()


def open_image(data: bytes, most_pixels: int, smallest: int) -> Image.Image:
    """The image, upright, in mode RGB.

    `smallest` is the shortest side, in pixels, that the model needs: see `data.decode`. Raises
    Refused: 413 for more pixels than allowed, 400 for all else that is no sound image.
    """
    try:
        pixels = stored_pixels(data)
        if pixels > most_pixels:
            raise Refused(
                413,
                f"the image has {pixels:,} pixels; at most {most_pixels:,} are taken: make it "
                "smaller",
            )
        with ONE_AT_A_TIME if pixels > LARGE else nullcontext():
            return decode(data, smallest)
    except DataError as error:
        said = " ".join(str(error).split())
        raise Refused(413 if said.startswith("too large") else 400, said) from error
    except MemoryError as error:
        raise Refused(413, "the image takes more memory than there is") from error
