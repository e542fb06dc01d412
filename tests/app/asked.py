"""A tiny model behind the app, asked without a network."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from starlette.testclient import TestClient

from patchwords.app.middleware import AppLimits
from patchwords.app.service import PredictionService
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.evaluation.predictions import LoadedModel
from patchwords.models.build import ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.weights.pretrained import Pretrained

LIMITS = AppLimits(body=2**20, answer_seconds=20.0)
LABELS = ("daisy", "roses", "<b>tulips</b>", "dandelion", "sunflowers")
TINY = ViTConfig(
    patch_size=4,
    width=12,
    depth=2,
    heads=2,
    mlp_width=23,
    image_size=(12, 20),  # 3 x 5 patches
    num_classes=len(LABELS),
)


def subject_of(config: ModelConfig = TINY) -> LoadedModel:
    """Every parameter is drawn, so that nothing can cancel."""
    model = build_model(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    preprocess = Preprocess(config.image_size, channels=config.channels)  # type: ignore[arg-type]
    source = Pretrained(model, preprocess, LABELS, "ViT-tiny/4")
    return LoadedModel("tiny", source, Device(torch.device("cpu"), bf16=False), workers=0)


def photo(seed: int = 0, kind: str = "PNG", size: tuple[int, int] = (37, 23)) -> bytes:
    """An encoded image of coarse colours."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, kind)
    return file.getvalue()


class App:
    """The app, and ways to send it requests."""

    def __init__(self, service: PredictionService, client: TestClient) -> None:
        self.service, self.client = service, client
        self.calls = 0  # images that reached the model
        self.gate = threading.Event()
        self.gate.set()
        decode = service.decode

        def watched(*arguments: Any) -> Any:
            pixels = decode(*arguments)
            self.calls += 1
            assert self.gate.wait(20)
            return pixels

        service.decode = watched  # type: ignore[method-assign]

    def predict(self, data: bytes, **settings: Any) -> Any:
        headers = {"Content-Type": "application/octet-stream"}
        return self.client.post("/predict", content=data, headers=headers, **settings)

    def look(self, data: bytes, **fields: Any) -> Any:
        return self.client.post("/look", files={"file": data}, data=fields)

    @contextmanager
    def shut(self) -> Iterator[None]:
        """The model answers nothing for a while."""
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.002)


def ask_in_parts(
    app: App, parts: Iterator[bytes | float], headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes, int]:
    """POST /predict whose body comes in parts, with pauses (numbers) between them.

    -> status, headers, body, and how many parts were read.
    """
    read = 0
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal read
        for part in parts:
            if isinstance(part, float):
                await asyncio.sleep(part)
                continue
            read += 1
            return {"type": "http.request", "body": part, "more_body": True}
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/predict",
        "raw_path": b"/predict",
        "query_string": b"",
        "root_path": "",
        "headers": [
            (name.lower().encode(), value.encode())
            for name, value in {"Host": "localhost", **headers}.items()
        ],
    }
    asyncio.run(app.client.app(scope, receive, send))  # type: ignore[arg-type]
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], found, body, read
