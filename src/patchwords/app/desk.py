"""The way of a request from its body to its answer: let in, read, decoded, asked, put in words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from torch import Tensor

from patchwords.app.edits import (
    ImageEdits,
    ImageSize,
    apply_edits,
    list_image_sizes,
    list_tilings,
    parse_edits,
    patch_grid,
)
from patchwords.app.images import decode_upload
from patchwords.app.limits import AppLimits
from patchwords.app.metrics import AppMetrics
from patchwords.app.mind import ImageAnalysis, InferenceWorker, RolloutFunction
from patchwords.app.neighbours import NeighbourSearch, encode_data_url
from patchwords.app.refused import RequestRefused
from patchwords.app.upload import RequestAdmission, read_upload
from patchwords.errors import ConfigError
from patchwords.evaluate.subject import LoadedModel
from patchwords.inspect.attention import extract_query_map, require_attention
from patchwords.inspect.rollout import attention_rollout
from patchwords.weights.pretrained import label_top_k

DECODER_THREADS = 2  # images decoded at once
MAX_PAGE_CLASSES = 50  # classes that the page gets
T = TypeVar("T")


class PredictionService:
    """One model, and everybody who asks it."""

    def __init__(
        self, subject: LoadedModel, neighbours: NeighbourSearch, limits: AppLimits
    ) -> None:
        self.subject, self.neighbours, self.limits = subject, neighbours, limits
        self.metrics = AppMetrics()
        self.no_look, looking = make_rollout_function(subject)
        self.mind = InferenceWorker(subject, limits, self.metrics, looking)
        self.room = RequestAdmission(limits)
        self.pool = ThreadPoolExecutor(DECODER_THREADS, thread_name_prefix="decode")

    def close(self) -> None:
        """Nothing is taken on any more; an image that is being decoded is left to itself."""
        self.neighbours.close()
        self.mind.close()
        self.pool.shutdown(wait=False, cancel_futures=True)

    async def predict(self, request: Request, top_k: int) -> list[dict[str, Any]]:
        """The likeliest classes, as `Pretrained.predict` gives them."""
        with self.room.place() as take:
            upload = await read_upload(request, self.limits, take)

            def prepare() -> np.ndarray:
                return self.pixels(upload.image, self.subject.preprocess.image_size)

            async def answered() -> list[dict[str, Any]]:
                pixels = await self.apart(prepare)
                scores = await asyncio.wrap_future(self.mind.ask("predict", pixels))
                return label_top_k(scores, self.subject.source.labels, top_k)

            return await self.in_time(answered())

    async def look(self, request: Request) -> dict[str, Any]:
        """Classes, the picture as the model saw it, where it looked, nearest training photos."""
        with self.room.place() as take:
            upload = await read_upload(request, self.limits, take)
            edits = parse_edits(upload.fields, self.subject.model, self.subject.preprocess)
            grid = patch_grid(self.subject.model, edits.size)

            def prepare() -> np.ndarray:
                return apply_edits(edits, self.pixels(upload.image, edits.size), grid)

            async def answered() -> dict[str, Any]:
                pixels = await self.apart(prepare)
                look = await asyncio.wrap_future(self.mind.ask("look", pixels))
                return await self.apart(lambda: self.words(edits, grid, pixels, look))

            return await self.in_time(answered())

    def words(
        self, edits: ImageEdits, grid: ImageSize, pixels: np.ndarray, look: ImageAnalysis
    ) -> dict[str, Any]:
        """For the page, as plain values."""
        looked = None if look.looked is None else np.round(look.looked, 6).ravel().tolist()
        return {
            "size": edits.size,
            "grid": grid,
            "tilings": list_tilings(edits.size, grid),
            "predictions": label_top_k(look.scores, self.subject.source.labels, MAX_PAGE_CLASSES),
            "picture": encode_data_url(pixels),
            "looked": looked,
            "neighbours": self.neighbours.nearest(look.features),
        }

    def pixels(self, image: bytes, size: ImageSize) -> np.ndarray:
        """Encoded -> uint8 [H, W, C], as evaluation sees it at this size."""
        preprocess = replace(self.subject.preprocess, image_size=size)
        return preprocess(decode_upload(image, self.limits.pixels, preprocess.smallest))

    async def apart(self, work: Callable[[], T]) -> T:
        """Runs in one of the few threads that decode."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def in_time(self, answer: Awaitable[T]) -> T:
        """Raises Refused (504) where it takes too long; what has not begun never does then."""
        try:
            return await asyncio.wait_for(answer, self.limits.answer_seconds)
        except asyncio.TimeoutError as error:
            seconds = self.limits.answer_seconds
            raise RequestRefused(504, f"the answer took more than {seconds:g} s") from error

    def describe(self) -> dict[str, Any]:
        """What the page has to know."""
        source, model = self.subject.source, self.subject.model
        own = self.subject.preprocess.image_size
        offered = list_image_sizes(model, self.subject.preprocess)
        return {
            "name": source.architecture or Path(self.subject.name).name,
            "classes": len(source.labels),
            "size": own,
            "grid": patch_grid(model, own),
            "sizes": [{"size": size, "grid": patch_grid(model, size)} for size in offered],
            "looks": self.no_look is None,
            "no_look": self.no_look,
            "neighbours": self.neighbours.state(),
            "most_bytes": self.limits.body,
        }

    def now(self) -> dict[str, tuple[float, str]]:
        """Numbers of this moment, for the metrics."""
        return {
            "patchwords_queue_length": (len(self.mind.batcher), "Images that wait for the model."),
            "patchwords_requests_in_work": (
                self.room.requests,
                "Requests let in and not answered yet.",
            ),
            "patchwords_bytes_held": (self.room.bytes, "Of the bodies of requests in work."),
        }


def make_rollout_function(subject: LoadedModel) -> tuple[str | None, RolloutFunction | None]:
    """(why the model cannot tell where it looked, None), or (None, how)."""
    try:
        vit = require_attention(subject.model)
    except ConfigError as error:
        return str(error), None

    def looking(images: Tensor) -> np.ndarray:
        rolled = attention_rollout(vit, images)
        return (
            extract_query_map(rolled, vit.grid(images), vit.config.prefix)[0].float().cpu().numpy()
        )

    return None, looking
