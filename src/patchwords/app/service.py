"""The way of a request from its body to its answer: let in, read, decoded, asked, put in words."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
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
from patchwords.app.metrics import AppMetrics
from patchwords.app.middleware import AppLimits, RequestRefused, busy_error
from patchwords.app.neighbours import NeighbourSearch, encode_data_url
from patchwords.app.upload import RequestAdmission, decode_upload, read_upload
from patchwords.errors import ConfigError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.interpret.attention import extract_query_map, require_attention
from patchwords.interpret.rollout import attention_rollout
from patchwords.weights.pretrained import label_top_k

# Questions that come one by one are answered together: a bounded queue before one worker thread.
#
# A question waits a few milliseconds for others of its kind; while the worker is busy more of them
# gather by themselves, so batches grow with the load.


BatchFunction = Callable[
    [Any, list[Any]], Sequence[Any]
]  # (kind, items) -> an answer for each item


@dataclass(frozen=True, eq=False)
class QueuedItem:
    """One item, and where its answer goes."""

    kind: Hashable
    item: Any
    future: Future[Any] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Answers questions of one kind at a time, the kind of the oldest first.

    Args:
        answer: computes a batch, always in the same thread.
        most: questions in a batch.
        wait: seconds that a question waits for others.
        bound: questions that may wait; one more is refused.
        observe: told the size of every batch.
    """

    def __init__(
        self,
        answer: BatchFunction,
        most: int,
        wait: float,
        bound: int,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.answer, self.observe = answer, observe
        self.most, self.wait, self.bound = most, wait, bound
        self.waiting: list[QueuedItem] = []
        self.changed = threading.Condition()
        self.closed = False
        self.worker = threading.Thread(target=self.work, name="model", daemon=True)
        self.worker.start()

    def __len__(self) -> int:
        return len(self.waiting)

    def ask(self, kind: Hashable, item: Any) -> Future[Any]:
        """-> the answer, when it is there; cancelled before its turn, it is never computed.

        Raises Refused where the queue is full (429) or the app stops (503).
        """
        question = QueuedItem(kind, item)
        with self.changed:
            if self.closed:
                raise RequestRefused(503, "the app is stopping")
            if len(self.waiting) >= self.bound:
                raise busy_error(f"{self.bound} questions wait for the model")
            self.waiting.append(question)
            self.changed.notify()
        return question.future

    def close(self) -> None:
        """End the worker after the batch in hand; what waits is refused."""
        with self.changed:
            self.closed = True
            left, self.waiting = self.waiting, []
            self.changed.notify()
        for question in left:
            if question.future.set_running_or_notify_cancel():
                question.future.set_exception(RequestRefused(503, "the app is stopping"))
        self.worker.join(timeout=5)

    def work(self) -> None:
        while (batch := self.next_batch()) is not None:
            batch = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if not batch:
                continue
            self.observe(len(batch))
            try:
                answers = self.answer(batch[0].kind, [one.item for one in batch])
                for one, answer in zip(batch, answers, strict=True):
                    one.future.set_result(answer)
            except Exception as fault:  # whoever asked is told; the worker goes on
                for one in batch:
                    if not one.future.done():
                        one.future.set_exception(fault)

    def next_batch(self) -> list[QueuedItem] | None:
        """The oldest question with others of its kind; None when the app stops."""
        with self.changed:
            while not self.waiting and not self.closed:
                self.changed.wait()
            if self.closed:
                return None
            oldest = self.waiting[0]
            until = oldest.since + self.wait
            while (
                not self.closed
                and len(self.like(oldest)) < self.most
                and (left := until - time.monotonic()) > 0
            ):
                self.changed.wait(left)
            batch = self.like(oldest)[: self.most]
            chosen = {id(one) for one in batch}
            self.waiting = [one for one in self.waiting if id(one) not in chosen]
            return batch

    def like(self, question: QueuedItem) -> list[QueuedItem]:
        return [one for one in self.waiting if one.kind == question.kind]


# What the model says of images, batch by batch, and where it looked.
#
# Sizes: B batch, C channels, H W image, h x w patches, R representation.


RequestKind = Literal["predict", "look"]


@dataclass(frozen=True)
class ImageAnalysis:
    """Everything that the page shows of one image."""

    scores: np.ndarray  # float32 [classes], probabilities
    features: np.ndarray  # float32 [R], what the classifier saw
    looked: np.ndarray | None  # [h, w], or None for a model that cannot tell


RolloutFunction = Callable[[torch.Tensor], np.ndarray]  # float [1, C, H, W], normalised -> [h, w]


class InferenceWorker:
    """A model, and the one thread that asks it. `predict` gives scores, `look` gives Look."""

    def __init__(
        self,
        subject: LoadedModel,
        limits: AppLimits,
        metrics: AppMetrics,
        looking: RolloutFunction | None = None,
    ) -> None:
        self.subject, self.looking = subject, looking
        self.fast = subject.source.for_inference(subject.device)
        self.batcher = Batcher(
            self.answer, limits.batch, limits.wait_seconds, limits.requests, metrics.batch
        )

    def ask(self, kind: RequestKind, pixels: np.ndarray) -> Future[Any]:
        """uint8 [H, W, C] -> the answer to come; images of one size are answered together."""
        return self.batcher.ask((kind, pixels.shape), pixels)

    def answer(
        self, what: tuple[RequestKind, tuple[int, ...]], images: list[np.ndarray]
    ) -> list[np.ndarray] | list[ImageAnalysis]:
        batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)  # [B, C, H, W]
        if what[0] == "predict":
            return list(self.fast.scores(batch, self.subject.device))
        return self.look(batch)

    def look(self, images: torch.Tensor) -> list[ImageAnalysis]:
        """uint8 [B, C, H, W] -> of each image"""
        model, device = self.fast.model, self.subject.device
        with torch.inference_mode(), device.autocast():
            x = self.subject.preprocess.normalise(images.to(device.torch_device))
            features = model.forward_features(x)
            scores = model.forward_head(features).float().softmax(-1).cpu().numpy()
            represented = model.forward_head(features, pre_logits=True).float().cpu().numpy()
        found = []
        for number, (row, seen) in enumerate(zip(scores, represented, strict=True)):
            # one by one: attention of a whole batch could fill the memory
            looked = self.looking(x[number : number + 1]) if self.looking else None
            found.append(ImageAnalysis(row, seen, looked))
        return found

    def close(self) -> None:
        self.batcher.close()


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
        photo = decode_upload(image, self.limits.pixels, preprocess.smallest)
        return preprocess.resize_and_crop(np.array(photo))

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
            extract_query_map(rolled, vit.grid(images), vit.config.num_prefix_tokens)[0]
            .float()
            .cpu()
            .numpy()
        )

    return None, looking
