"""Images a second on one core: the loader's train and evaluation views against plain Pillow."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import photos, plain_transforms
from benchmarks.asked import Asked
from benchmarks.table import Section, compare
from benchmarks.timing import interleave
from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.decode import EncodedImage
from patchwords.data.preprocess import Preprocess

SIZE = 224
COUNTS = {"photos": 300, "12-megapixel photos": 12}  # in a repeat
GOALS = {
    ("photos", "train"): 1.9,
    ("12-megapixel photos", "train"): 3.0,
    ("photos", "evaluation"): 1.6,
    ("12-megapixel photos", "evaluation"): 4.5,
}
FULL, SCRIPT = "Pillow, decoded in full", "the same, ToTensor and Normalize"

View = Callable[[bytes, int], object]  # encoded photo, its number -> pixels


def measure(asked: Asked) -> Section:
    section = Section("input")
    if asked.data is None and not asked.quick:
        section.remark("skipped, it needs photos (--data FOLDER)")
        return section
    section.remark(
        "decode, inception crop and flip, or decode and evaluation crop, to uint8 pixels of "
        f"{SIZE}x{SIZE}; one core; large photos are mosaics of the others"
    )
    with tempfile.TemporaryDirectory() as folder:
        data = asked.data or photos.make(Path(folder), 4)
        small = photos.read_some(data, 4 if asked.quick else COUNTS["photos"])
    size = (400, 300) if asked.quick else photos.LARGE
    count = 2 if asked.quick else COUNTS["12-megapixel photos"]
    with one_core():
        for name, files in (
            ("photos", small),
            ("12-megapixel photos", photos.large(small, count, size)),
        ):
            for kind, views in (("train", train_views()), ("evaluation", eval_views())):
                add_views(section, (name, kind), views, files, asked)
    return section


def train_views() -> dict[str, View]:
    ours = TrainTransform(Preprocess((SIZE, SIZE)), AugmentSettings(), seed=0)

    def theirs(data: bytes, number: int) -> np.ndarray:
        return np.asarray(plain_transforms.train_crop(data, random.Random(number), SIZE))

    def script(data: bytes, number: int) -> object:
        crop = plain_transforms.train_crop(data, random.Random(number), SIZE)
        return plain_transforms.to_tensor(crop)

    return {"ours": lambda data, number: ours(data, 0, number), FULL: theirs, SCRIPT: script}


def eval_views() -> dict[str, View]:
    preprocess = Preprocess((SIZE, SIZE))
    return {
        "ours": lambda data, number: preprocess.resize_and_crop(EncodedImage(data).pixels()),
        FULL: lambda data, number: np.asarray(plain_transforms.eval_crop(data, SIZE)),
        SCRIPT: lambda data, number: plain_transforms.to_tensor(
            plain_transforms.eval_crop(data, SIZE)
        ),
    }


def add_views(
    section: Section,
    what: tuple[str, str],
    views: dict[str, View],
    files: list[bytes],
    asked: Asked,
) -> None:
    def over(view: View) -> Callable[[], None]:
        def call() -> None:
            for number, data in enumerate(files):
                view(data, number)

        return call

    calls = {name: over(view) for name, view in views.items()}
    found = interleave(calls, asked.rounds_or(7), asked.seconds)
    for name in (FULL, SCRIPT):
        section.add(
            compare(
                f"{what[0]}, {what[1]} view",
                "images/s",
                found["ours"],
                (name, found[name]),
                goal=GOALS[what] if name == FULL else None,
                work=len(files),
            )
        )


@contextmanager
def one_core() -> Iterator[None]:
    """Inside, this process has one core, where the system can be told so (Linux)."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
