"""The body of a request: read with a limit on bytes and time, into memory and never to the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from fastapi import Request
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from patchwords.app.middleware import MIB, AppLimits, RequestRefused, busy_error
from patchwords.data.decode import count_stored_pixels, decode_image
from patchwords.errors import DataError

MULTIPART_FORM = "multipart/form-data"
FILE_FIELD = "file"  # the field that has the image
MAX_FORM_FIELDS = 8
MAX_FIELD_BYTES = 2**16
DRAIN_FACTOR = 4  # times the limit that are still read, and dropped, so that the refusal arrives


@dataclass(frozen=True)
class Upload:
    """What a client sent: an encoded image, and the settings beside it."""

    image: bytes
    fields: dict[str, str]


class RequestAdmission:
    """Room for the requests in work, and for the bytes of their bodies."""

    def __init__(self, limits: AppLimits) -> None:
        self.limits = limits
        self.requests = 0
        self.bytes = 0

    @contextmanager
    def place(self) -> Iterator[Callable[[int], None]]:
        """For the time of a request; -> what takes room for so many bytes more.

        Entering, and taking, raise Refused (429) where there is none left.
        """
        if self.requests >= self.limits.requests:
            raise busy_error(f"{self.requests} requests are in work")
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.bytes + count > self.limits.held:
                raise busy_error("the images in work fill the memory set aside for them")
            self.bytes += count
            taken += count

        self.requests += 1
        try:
            yield take
        finally:
            self.requests -= 1
            self.bytes -= taken


async def read_upload(request: Request, limits: AppLimits, take: Callable[[int], None]) -> Upload:
    """A form with an image in the field `file`, or the image as the whole body.

    `take` is that of the request's place in the room.
    Raises Refused: 400 for a broken form or an empty body, 408 for a slow one, 413 for a large
    one, 415 for one of another type, 429 where all requests together are too large.
    """
    kind = request.headers.get("content-type", "application/octet-stream")
    essence = kind.partition(";")[0].strip().lower()
    is_image = essence == "application/octet-stream" or essence.startswith("image/")
    if essence != MULTIPART_FORM and not is_image:
        raise RequestRefused(
            415,
            f"send an image as the body, or {MULTIPART_FORM} with the field {FILE_FIELD!r}; this is neither",
        )
    try:
        reading = read_body(request, limits.body, take)
        body = await asyncio.wait_for(reading, limits.upload_seconds)
    except asyncio.TimeoutError as error:
        raise closing_refusal(
            408, f"the body took more than {limits.upload_seconds:g} s"
        ) from error
    except ClientDisconnect as error:
        raise RequestRefused(400, "the client went away") from error
    return Upload(body, {}) if is_image else await read_form(request, body)


async def read_body(request: Request, most: int, take: Callable[[int], None]) -> bytes:
    """Of at most so many bytes; a larger one is read on for a while, and dropped."""
    too_large = f"the body has more than {most / MIB:g} MiB: send a smaller image"
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > DRAIN_FACTOR * most:
        raise closing_refusal(413, too_large)
    parts: list[bytes] = []
    count = 0
    async for part in request.stream():
        count += len(part)
        if count > DRAIN_FACTOR * most:
            break
        if count <= most:
            take(len(part))
            parts.append(part)
        else:
            parts.clear()
    if count > most:
        raise closing_refusal(413, too_large)
    return b"".join(parts)


def closing_refusal(status: int, reason: str) -> RequestRefused:
    """A refusal after which the connection ends: the rest of the body is not waited for."""
    return RequestRefused(status, reason, {"Connection": "close"})


async def read_form(request: Request, body: bytes) -> Upload:
    """The image and the settings of a multipart form."""

    async def once() -> AsyncGenerator[bytes, None]:
        yield body

    parser = InMemoryFormParser(
        request.headers,
        once(),
        max_files=1,
        max_fields=MAX_FORM_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        said = " ".join(error.message.split())
        raise RequestRefused(400, f"the form cannot be read: {said}") from error
    except (ValueError, LookupError) as error:  # of headers that no browser writes
        raise RequestRefused(400, "the form cannot be read") from error
    try:
        image = form.get(FILE_FIELD)
        if not isinstance(image, UploadFile):
            raise RequestRefused(400, f"the form has no file in the field {FILE_FIELD!r}")
        content = await image.read()
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        return Upload(content, fields)
    finally:
        await form.close()


class InMemoryFormParser(MultiPartParser):
    """Starlette's parser, but an upload never goes to a temporary file."""

    spool_max_size = 2**40


# A client's bytes -> an image, or a refusal: sized before they are decoded, and never kept.
#
# The bytes alone decide what they are: no name, no type that the client says, no path, no URL.


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
