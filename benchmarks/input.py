"""Images a second on one core: this loader's train and evaluation views against plain Pillow.

    python benchmarks/input.py FOLDER [--images 300] [--rounds 5] [--size 224]

The baseline decodes in full, converts to RGB, crops or resizes in two steps, and makes an array.
Rounds are interleaved and medians printed with the ratio, for absolute figures of a shared machine
do not hold.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from patchwords.data.augment import Augment, TrainView
from patchwords.data.crop import draw_crop
from patchwords.data.decode import decode
from patchwords.data.preprocess import Preprocess
from patchwords.noise import numpy_generator


def plain_train(data: bytes, sample: int, size: int) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = draw_crop(*image.size, numpy_generator(0, "augment", 0, sample))
    return np.asarray(image.crop([round(x) for x in box]).resize((size, size), 2))


def plain_eval(data: bytes, preprocess: Preprocess) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    height, width = preprocess.image_size
    scale = preprocess.smallest / min(image.size)
    image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return np.asarray(image.crop((left, top, left + width, top + height)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()

    paths = sorted(path for path in args.folder.rglob("*.jp*g"))
    files = [path.read_bytes() for path in random.Random(0).sample(paths, args.images)]
    preprocess = Preprocess((args.size, args.size))
    view = TrainView(preprocess, Augment(), seed=0)
    contenders: dict[str, Callable[[bytes, int], np.ndarray]] = {
        "train, plain Pillow": lambda data, i: plain_train(data, i, args.size),
        "train, patchwords": lambda data, i: view(data, 0, i),
        "evaluation, plain Pillow": lambda data, i: plain_eval(data, preprocess),
        "evaluation, patchwords": lambda data, i: preprocess(decode(data, preprocess.smallest)),
    }
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, function in contenders.items():
            start = time.perf_counter()
            for number, data in enumerate(files):
                function(data, number)
            speeds[name].append(len(files) / (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, speed in medians.items():
        baseline = medians[name.split(",")[0] + ", plain Pillow"]
        print(f"{name:26} {speed:7.0f} images/s  {speed / baseline:5.2f}x")


if __name__ == "__main__":
    main()
