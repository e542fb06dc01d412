"""What torchvision's v1 transforms do, written out on Pillow: the peers' input pipeline.

RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, ToTensor and Normalize of torchvision
0.28 (transforms/transforms.py, _functional_pil.py), bilinear and with every photo decoded in full.
"""

from __future__ import annotations

import io
import math
import random

import numpy as np
import torch
from PIL import Image
from torch import Tensor

BILINEAR = Image.Resampling.BILINEAR


def train_crop(data: bytes, dice: random.Random, size: int) -> Image.Image:
    """RandomResizedCrop(size, scale=(0.05, 1)) and a flip of every second photo."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left, top, width, height = draw_box(image.width, image.height, dice)
    image = image.crop((left, top, left + width, top + height)).resize((size, size), BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if dice.random() < 0.5 else image


def draw_box(width: int, height: int, dice: random.Random) -> tuple[int, int, int, int]:
    """left, top, width, height in whole pixels; the area is 5 to 100 % of the photo's."""
    for _ in range(10):
        area = width * height * dice.uniform(0.05, 1.0)
        aspect = math.exp(dice.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return dice.randint(0, width - w), dice.randint(0, height - h), w, h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width / (3 / 4)))
    return (width - w) // 2, (height - h) // 2, w, h


def eval_crop(data: bytes, size: int) -> Image.Image:
    """Resize(size / 0.875) of the shorter side, CenterCrop(size)."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    short = round(size / 0.875)
    scale = short / min(image.size)
    image = image.resize([max(short, int(side * scale)) for side in image.size], BILINEAR)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def to_tensor(image: Image.Image) -> Tensor:
    """ToTensor and Normalize(0.5, 0.5): float32 [C, H, W]."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()  # [C, H, W]
    return pixels.to(torch.float32).div(255).sub_(0.5).div_(0.5)
