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
from patchwords.data.decode import decode
from patchwords.model.vit import ViT
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained

PHOTOS = 2000
BATCH = 32
GOAL = 0.995


def add_agreement(section: Section, asked: Asked, ours: Callable[[ViT, str], Answer]) -> None:
    """The share of photos on which bf16 and fp32 put the same class first."""
    if asked.data is None:
        section.remark("top-1 agreement of bf16: skipped, it needs photos (--data FOLDER)")
        return
    pretrained = from_pretrained(asked.weights)
    paths = paths_of(asked.data)
    chosen = random.Random(0).sample(paths, min(len(paths), 8 if asked.quick else PHOTOS))
    exact, fast = (ours(pretrained.model, name) for name in ("fp32", "bf16"))
    same = 0
    for start in range(0, len(chosen), BATCH):
        images = read(chosen[start : start + BATCH], pretrained)
        same += int((exact(images).argmax(1) == fast(images).argmax(1)).sum())
    share = same / len(chosen)
    section.add(
        Row(
            f"top-1 of bf16 on {len(chosen):,} photos, {asked.weights}",
            "of them",
            share,
            "fp32",
            1.0,
            Ratio(share, share, share),
            GOAL,
        )
    )


def read(paths: list[Path], pretrained: Pretrained) -> Tensor:
    """-> normalised images [B, C, H, W]"""
    preprocess = pretrained.preprocess
    pixels = [preprocess(decode(path.read_bytes(), preprocess.smallest)) for path in paths]
    stack = torch.from_numpy(np.stack(pixels))  # [B, H, W, C]
    return preprocess.normalise(stack.permute(0, 3, 1, 2))
