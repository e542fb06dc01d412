"""Predictions of one model for the requests of the app, one at a time in a worker thread.

Sizes: C channels, H W image, h x w patches, R representation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from fastapi import Request
from PIL import Image
from torch import Tensor

from patchwords.app.edits import (
    ImageSize,
    apply_edits,
    list_image_sizes,
    list_tilings,
    parse_edits,
    patch_grid,
)
from patchwords.app.middleware import AppLimits, RequestRefused
from patchwords.app.neighbours import NeighbourSearch
from patchwords.app.upload import Upload, decode_upload, read_upload
from patchwords.data.decode import encode_image_url
from patchwords.errors import ConfigError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.interpret.attention import extract_query_map, require_attention
from patchwords.interpret.rollout import attention_rollout
from patchwords.weights.pretrained import label_top_k

MAX_PAGE_CLASSES = 50
T = TypeVar("T")


class PredictionService:
    """A model, its nearest photos, and the worker thread that answers requests in turn."""

    def __init__(self, loaded: LoadedModel, neighbours: NeighbourSearch, limits: AppLimits) -> None:
        self.loaded, self.neighbours, self.limits = loaded, neighbours, limits
        self.inference = loaded.source.for_inference(loaded.device)
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.active = 0  # requests in progress
        self.closed = False
        self.no_attention: str | None = None  # why the model has no attention map
        try:
            require_attention(loaded.model)
        except ConfigError as error:
            self.no_attention = str(error)

    def close(self) -> None:
        """Stop after the current image; requests that wait are refused."""
        self.closed = True
        self.neighbours.close()
        self.worker.shutdown(wait=False, cancel_futures=True)

    async def predict(self, request: Request, top_k: int) -> list[dict[str, Any]]:
        """Return the most likely classes, as `Pretrained.predict` does."""

        def compute(upload: Upload) -> list[dict[str, Any]]:
            pixels = self.decode(upload.image, self.loaded.preprocess.image_size)
            scores = self.inference.scores(to_batch(pixels), self.loaded.device)[0]
            return label_top_k(scores, self.loaded.source.labels, top_k)

        return await self.answer(request, compute)

    async def analyse(self, request: Request) -> dict[str, Any]:
        """Return all that the page shows of an edited image, as JSON values."""
        return await self.answer(request, self.analyse_upload)

    async def answer(self, request: Request, compute: Callable[[Upload], T]) -> T:
        """Read an upload and compute its answer in the worker, within the limits."""
        if self.closed:
            raise RequestRefused(503, "the app is stopping")
        if self.active >= self.limits.requests:
            reason = f"busy: {self.active} requests are in progress; try again in a second"
            raise RequestRefused(429, reason, {"Retry-After": "1"})
        self.active += 1
        try:
            upload = await read_upload(request, self.limits)
            future = asyncio.get_running_loop().run_in_executor(self.worker, compute, upload)
            return await asyncio.wait_for(future, self.limits.answer_seconds)
        except asyncio.TimeoutError as error:
            reason = f"the answer took more than {self.limits.answer_seconds:g} s"
            raise RequestRefused(504, reason) from error
        finally:
            self.active -= 1

    def analyse_upload(self, upload: Upload) -> dict[str, Any]:
        """Apply the edits, predict, and compute the attention map and the nearest photos."""
        model, device = self.inference.model, self.loaded.device
        edits = parse_edits(upload.fields, self.loaded.model, self.loaded.preprocess)
        grid = patch_grid(self.loaded.model, edits.size)
        pixels = apply_edits(edits, self.decode(upload.image, edits.size), grid)
        with torch.inference_mode(), device.autocast():
            images = self.loaded.preprocess.normalise(to_batch(pixels).to(device.torch_device))
            features = model.forward_features(images)
            scores = model.forward_head(features)[0].float().softmax(-1).cpu().numpy()
            represented = model.forward_head(features, pre_logits=True)[0].float().cpu().numpy()
        attention = None
        if self.no_attention is None:
            attention = np.round(self.compute_attention(images), 6).ravel().tolist()
        picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        return {
            "size": edits.size,
            "grid": grid,
            "tilings": list_tilings(edits.size, grid),
            "predictions": label_top_k(scores, self.loaded.source.labels, MAX_PAGE_CLASSES),
            "picture": encode_image_url(picture, lossless=True),
            "looked": attention,
            "neighbours": self.neighbours.nearest(represented),
        }

    def compute_attention(self, images: Tensor) -> np.ndarray:
        """Compute Attention Rollout of one image [1, C, H, W] -> [h, w]."""
        vit = require_attention(self.loaded.model)
        rollout = attention_rollout(vit, images)
        prefix, class_token = vit.config.num_prefix_tokens, vit.config.has_class_token
        grid_map = extract_query_map(rollout, vit.grid(images), prefix, class_token=class_token)
        return grid_map[0].float().cpu().numpy()

    def decode(self, image: bytes, size: ImageSize) -> np.ndarray:
        """Decode and preprocess an image as evaluation does: uint8 [H, W, C]."""
        preprocess = replace(self.loaded.preprocess, image_size=size)
        photo = decode_upload(image, self.limits.pixels)
        return preprocess.resize_and_crop(np.array(photo))

    def describe(self) -> dict[str, Any]:
        """Describe the model for the page."""
        source, model = self.loaded.source, self.loaded.model
        size = self.loaded.preprocess.image_size
        sizes = list_image_sizes(model, self.loaded.preprocess)
        return {
            "name": source.architecture or Path(self.loaded.name).name,
            "classes": len(source.labels),
            "size": size,
            "grid": patch_grid(model, size),
            "sizes": [{"size": each, "grid": patch_grid(model, each)} for each in sizes],
            "looks": self.no_attention is None,
            "no_look": self.no_attention,
            "neighbours": self.neighbours.state(),
            "most_bytes": self.limits.body,
        }


def to_batch(pixels: np.ndarray) -> Tensor:
    """Convert an image uint8 [H, W, C] to a batch [1, C, H, W]."""
    return torch.from_numpy(pixels[None]).permute(0, 3, 1, 2)
