"""Do the fast answers name the same classes as exact ones, on real photos?"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.asked import Asked
from benchmarks.peers import Answer
from benchmarks.photos import paths_of
from benchmarks.table import Row, Section
from benchmarks.timing import Ratio
from patchwords.data.decode import read_pixels
from patchwords.models.inference.int8 import find_int8_obstacle
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained

PHOTOS = 2000
BATCH = 32
GOAL = 0.995


def add_agreement(section: Section, asked: Asked, ours: Callable[..., Answer]) -> None:
    """The share of photos on which bf16, or int8, and fp32 put the same class first."""
    if asked.data is None:
        section.remark("top-1 agreement of bf16: skipped, it needs photos (--data FOLDER)")
        return
    pretrained = from_pretrained(asked.weights)
    paths = paths_of(asked.data)
    chosen = random.Random(0).sample(paths, min(len(paths), 8 if asked.quick else PHOTOS))
    # int8 is fitted to photos that it is not asked about.
    seen = read([path for path in paths if path not in set(chosen)][:BATCH] or chosen, pretrained)
    answers = {name: ours(pretrained.model, name) for name in ("fp32", "bf16")}
    if find_int8_obstacle() is None:
        answers["int8"] = ours(pretrained.model, "int8", seen)
    same = dict.fromkeys(answers, 0)
    for start in range(0, len(chosen), BATCH):
        images = read(chosen[start : start + BATCH], pretrained)
        exact = answers["fp32"](images).argmax(1)
        for name, run in answers.items():
            same[name] += int((run(images).argmax(1) == exact).sum())
    del same["fp32"]
    for name, count in same.items():
        share = count / len(chosen)
        section.add(
            Row(
                f"top-1 of {name} on {len(chosen):,} photos, {asked.weights}",
                "of them",
                share,
                "fp32",
                1.0,
                Ratio(share, share, share),
                GOAL if name == "bf16" else None,
            )
        )


def read(paths: list[Path], pretrained: Pretrained) -> Tensor:
    """-> normalised images [B, C, H, W]"""
    preprocess = pretrained.preprocess
    pixels = [preprocess.resize_and_crop(read_pixels(path.read_bytes())) for path in paths]
    stack = torch.from_numpy(np.stack(pixels))  # [B, H, W, C]
    return preprocess.normalise(stack.permute(0, 3, 1, 2))
