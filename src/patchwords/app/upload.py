"""Uploads: the body of a request, read with limits into memory, and the image in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import Request
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from patchwords.app.middleware import MIB, AppLimits, RequestRefused
from patchwords.data.decode import count_stored_pixels, decode_image
from patchwords.errors import DataError

MULTIPART_FORM = "multipart/form-data"
FILE_FIELD = "file"
MAX_FORM_FIELDS = 8
MAX_FIELD_BYTES = 2**16
DRAIN_FACTOR = 4  # times the limit are read and dropped, so that the client sees the refusal


@dataclass(frozen=True)
class Upload:
    """An encoded image, and the other fields of the form."""

    image: bytes
    fields: dict[str, str]


class InMemoryFormParser(MultiPartParser):
    """Starlette's parser without its temporary files for large uploads."""

    spool_max_size = 2**40


async def read_upload(request: Request, limits: AppLimits) -> Upload:
    """Read a form with an image in the field `file`, or an image as the whole body.

    Raises RequestRefused: 400 for a broken form, 408 for a slow body, 413 for a large one, 415 for
    another content type.
    """
    content_type = request.headers.get("content-type", "application/octet-stream")
    media_type = content_type.partition(";")[0].strip().lower()
    is_image = media_type == "application/octet-stream" or media_type.startswith("image/")
    if media_type != MULTIPART_FORM and not is_image:
        raise RequestRefused(
            415,
            f"send an image as the body, or {MULTIPART_FORM} with the field {FILE_FIELD!r}; this is "
            "neither",
        )
    try:
        body = await asyncio.wait_for(read_body(request, limits.body), limits.upload_seconds)
    except asyncio.TimeoutError as error:
        reason = f"the body took more than {limits.upload_seconds:g} s"
        raise RequestRefused(408, reason, {"Connection": "close"}) from error
    except ClientDisconnect as error:
        raise RequestRefused(400, "the client disconnected") from error
    return Upload(body, {}) if is_image else await parse_form(request, body)


async def read_body(request: Request, limit: int) -> bytes:
    """Read at most `limit` bytes; raise RequestRefused (413) for a larger body."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > DRAIN_FACTOR * limit:
            break
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
    if size > limit:
        reason = f"the body has more than {limit / MIB:g} MiB: send a smaller image"
        raise RequestRefused(413, reason, {"Connection": "close"})
    return b"".join(chunks)


async def parse_form(request: Request, body: bytes) -> Upload:
    """Parse a multipart form; raise RequestRefused (400) if it is broken or has no image."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = InMemoryFormParser(
        request.headers,
        stream(),
        max_files=1,
        max_fields=MAX_FORM_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        reason = " ".join(error.message.split())
        raise RequestRefused(400, f"the form cannot be read: {reason}") from error
    except (ValueError, LookupError) as error:  # invalid headers, which no browser sends
        raise RequestRefused(400, "the form cannot be read") from error
    image = form.get(FILE_FIELD)
    if not isinstance(image, UploadFile):
        raise RequestRefused(400, f"the form has no file in the field {FILE_FIELD!r}")
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    return Upload(await image.read(), fields)


def decode_upload(data: bytes, max_pixels: int) -> Image.Image:
    """Decode an image whose format the bytes alone decide: upright, in mode RGB.

    Raises RequestRefused: 413 for more pixels than allowed, 400 for anything but a sound image.
    """
    try:
        pixels = count_stored_pixels(data)
        if pixels > max_pixels:
            raise RequestRefused(
                413,
                f"the image has {pixels:,} pixels, the maximum is {max_pixels:,}: make it smaller",
            )
        return decode_image(data)
    except DataError as error:
        reason = " ".join(str(error).split())
        raise RequestRefused(413 if reason.startswith("too large") else 400, reason) from error
    except MemoryError as error:
        raise RequestRefused(413, "the image takes more memory than there is") from error
