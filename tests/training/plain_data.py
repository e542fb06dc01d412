"""Data of any shape for the plain command, and a clock in the place of measurements."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import pytest
import torch
from PIL import Image

from patchwords.data.dataset import TRAIN, DatasetSplits, Listing, build_dataset_splits
from patchwords.data.sources.digits import MemoryReader
from patchwords.device import choose_device
from patchwords.training import budget, run
from patchwords.training.engine.countdown import Countdown

CPU = choose_device("cpu", "fp32")
MEASURE = budget.measure_step_seconds
GPU = replace(CPU, torch_device=torch.device("cuda"))


def encode_image(size: tuple[int, int], mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, format="PNG")
    return file.getvalue()


def make_data(
    counts: list[int], size: tuple[int, int] = (100, 80), mode: str = "RGB"
) -> DatasetSplits:
    """Splits whose images are all the same."""
    listing, image = Listing(), encode_image(size, mode)
    for label, count in enumerate(counts):
        for number in range(count):
            listing.add(f"{label}/{number}", f"class {label:03}", len(image), 0)
    return build_dataset_splits("photos", "folder", {TRAIN: listing}, MemoryReader((image,)))


def tick(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A clock that moves on by as much at every look: once or twice a step."""
    times = itertools.count(step=seconds)
    monkeypatch.setattr(
        budget, "measure_step_seconds", lambda *args: MEASURE(*args, clock=lambda: next(times))
    )


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes in a run: on a busy machine its schedule is not cut."""
    monkeypatch.setattr(run, "Countdown", lambda time, spent: Countdown(time, 0.0, lambda: 0.0))
