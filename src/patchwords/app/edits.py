"""What is done to an image before the model sees it: another size, tiles shuffled, patches gone.

The study notes' cases by hand: a patch that is gone is black and tiles are dealt anew, as in
`evaluate.robustness.occlusion` and `.permutation`. Shuffling comes first: what is painted away on
the page is what is gone from the picture there.

Sizes: H W image, C channels, h x w grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from patchwords.app.refused import Refused
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.evaluate.robustness.permutation import shuffle_tiles
from patchwords.model.config import ViTConfig
from patchwords.model.family import Model
from patchwords.model.resnet_config import ResNetConfig
from patchwords.noise import numpy_generator

Size = tuple[int, int]

MOST_PATCHES = 4096  # of the sizes offered: attention between more takes gigabytes
MOST_SEED = 2**31


@dataclass(frozen=True)
class Edits:
    """One request's wishes; the defaults change nothing."""

    size: Size  # H, W
    tiles: int = 1  # to a side; 1: not shuffled
    seed: int = 0
    hidden: tuple[int, ...] = ()  # numbers of patches, row after row


def grid_of(model: Model, size: Size) -> Size:
    """(h, w) of the patches of images of this size; of a ResNet, of its last feature map."""
    config = model.config
    return config.trunk.grid(size) if isinstance(config, ResNetConfig) else config.grid_of(size)


def sizes(model: Model, preprocess: Preprocess) -> list[Size]:
    """Sizes that the model takes, from half to twice its own, rising; its own among them."""
    own, config = preprocess.image_size, model.config
    if isinstance(config, ViTConfig) and config.mixer == "mlp":  # has weights for each patch
        return [own]
    stride = config.trunk.stride if isinstance(config, ResNetConfig) else config.stride
    rows = own[0] / stride
    found = {own}
    for count in range(max(1, round(rows / 2)), round(rows * 2) + 1):
        size = count * stride, max(1, round(own[1] / stride * count / rows)) * stride
        try:
            config.with_settings(image_size=size)
        except ConfigError:  # as a window that has no place in it
            continue
        if np.prod(grid_of(model, size)) <= MOST_PATCHES:
            found.add(size)
    return sorted(found)


def tilings(size: Size, grid: Size) -> list[int]:
    """Tiles to a side into which an image can be cut, up to twice as many as it has patches."""
    return [n for n in range(2, 2 * max(grid) + 1) if not any(side % n for side in size)]


def read_edits(fields: Mapping[str, str], model: Model, preprocess: Preprocess) -> Edits:
    """The fields `height` and `width`, `tiles`, `seed`, and `hidden` as in "3,17,18".

    Raises Refused (400) where one is not a number, or not one that the model can do.
    """
    own = preprocess.image_size
    size = whole(fields, "height", own[0]), whole(fields, "width", own[1])
    offered = sizes(model, preprocess)
    if size not in offered:
        raise Refused(
            400,
            f"size {size[0]}x{size[1]} is not offered: the model takes {shown(offered[0])} to "
            f"{shown(offered[-1])}, see /model",
        )
    grid = grid_of(model, size)
    tiles = whole(fields, "tiles", 1)
    if tiles != 1 and tiles not in tilings(size, grid):
        raise Refused(400, f"{tiles}x{tiles} tiles do not divide {shown(size)} pixels")
    seed = whole(fields, "seed", 0)
    if seed >= MOST_SEED:
        raise Refused(400, f"seed must be below {MOST_SEED}")
    words = [word for word in fields.get("hidden", "").split(",") if word.strip()]
    hidden = tuple(sorted({number(word, "hidden") for word in words}))
    if hidden and hidden[-1] >= grid[0] * grid[1]:
        raise Refused(400, f"patch {hidden[-1]} does not exist: there are {grid[0] * grid[1]}")
    return Edits(size, tiles, seed, hidden)


def apply(edits: Edits, pixels: np.ndarray, grid: Size) -> np.ndarray:
    """uint8 [H, W, C] -> uint8 [H, W, C]"""
    if edits.tiles > 1:
        order = numpy_generator(edits.seed, "shuffle", edits.tiles).permutation(edits.tiles**2)
        image = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None]  # [1, C, H, W]
        moved = shuffle_tiles(image, torch.from_numpy(order)[None])
        pixels = moved[0].permute(1, 2, 0).numpy()  # [H, W, C]
    if edits.hidden:
        gone = np.isin(cells(edits.size, grid), edits.hidden)  # [H, W]
        pixels = np.where(gone[:, :, None], np.uint8(0), pixels)
    return np.ascontiguousarray(pixels)


def cells(size: Size, grid: Size) -> np.ndarray:
    """int64 [H, W], the patch of every pixel."""
    rows, columns = (np.arange(n) * count // n for n, count in zip(size, grid, strict=True))
    return rows[:, None] * grid[1] + columns


def whole(fields: Mapping[str, str], name: str, default: int) -> int:
    """A field that is a whole number."""
    return number(fields[name], name) if name in fields else default


def number(word: str, name: str) -> int:
    word = word.strip()
    if not (word.isascii() and word.isdecimal() and len(word) < 11):
        raise Refused(400, f"{name} must be made of whole numbers, 0 or above")
    return int(word)


def shown(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
