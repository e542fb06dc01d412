"""Edits of an image before the model sees it: another size, shuffled tiles, hidden patches.

The same as the perturbations of `evaluation.robustness`: hidden patches are black, tiles are
permuted. Shuffling comes first, so that the patches painted on the page are those that are hidden.

Sizes: H W image, C channels, h x w grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from patchwords.app.middleware import RequestRefused
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.evaluation.robustness.shuffling import shuffle_tiles
from patchwords.models.build import Model
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import ResNetConfig
from patchwords.rng import numpy_generator

ImageSize = tuple[int, int]

MAX_PATCHES = 4096  # attention between more takes gigabytes
MAX_SEED = 2**31


@dataclass(frozen=True)
class ImageEdits:
    """Edits of one request; the defaults change nothing."""

    size: ImageSize  # H, W
    tiles: int = 1  # per side; 1: not shuffled
    seed: int = 0
    hidden: tuple[int, ...] = ()  # patch indices in raster order


def patch_grid(model: Model, size: ImageSize) -> ImageSize:
    """Return the grid (h, w) of an image of this size; of a ResNet, its last feature map."""
    config = model.config
    return config.trunk.grid(size) if isinstance(config, ResNetConfig) else config.grid_of(size)


def list_image_sizes(model: Model, preprocess: Preprocess) -> list[ImageSize]:
    """List the sizes that the model takes, from half to twice its own."""
    default, config = preprocess.image_size, model.config
    if isinstance(config, ViTConfig) and not config.mixer_traits.any_grid:
        return [default]
    stride = config.trunk.stride if isinstance(config, ResNetConfig) else config.stride
    rows = default[0] / stride
    sizes = {default}
    for count in range(max(1, round(rows / 2)), round(rows * 2) + 1):
        size = count * stride, max(1, round(default[1] / stride * count / rows)) * stride
        try:
            config.with_settings(image_size=size)
        except ConfigError:  # for example, smaller than the attention window
            continue
        if np.prod(patch_grid(model, size)) <= MAX_PATCHES:
            sizes.add(size)
    return sorted(sizes)


def list_tilings(size: ImageSize, grid: ImageSize) -> list[int]:
    """List the numbers of tiles per side that divide an image, up to twice the patches."""
    return [n for n in range(2, 2 * max(grid) + 1) if not any(side % n for side in size)]


def parse_edits(fields: Mapping[str, str], model: Model, preprocess: Preprocess) -> ImageEdits:
    """Parse the fields `height`, `width`, `tiles`, `seed`, and `hidden` such as "3,17,18".

    Raises RequestRefused (400) for a value that is not a number or not possible for the model.
    """
    default = preprocess.image_size
    size = (
        parse_integer_field(fields, "height", default[0]),
        parse_integer_field(fields, "width", default[1]),
    )
    sizes = list_image_sizes(model, preprocess)
    if size not in sizes:
        raise RequestRefused(
            400,
            f"size {size[0]}x{size[1]} is not offered: the model takes {format_size(sizes[0])} to "
            f"{format_size(sizes[-1])}, see /model",
        )
    grid = patch_grid(model, size)
    tiles = parse_integer_field(fields, "tiles", 1)
    if tiles != 1 and tiles not in list_tilings(size, grid):
        raise RequestRefused(400, f"{tiles}x{tiles} tiles do not divide {format_size(size)} pixels")
    seed = parse_integer_field(fields, "seed", 0)
    if seed >= MAX_SEED:
        raise RequestRefused(400, f"seed must be below {MAX_SEED}")
    indices = [word for word in fields.get("hidden", "").split(",") if word.strip()]
    hidden = tuple(sorted({parse_integer(word, "hidden") for word in indices}))
    if hidden and hidden[-1] >= grid[0] * grid[1]:
        raise RequestRefused(
            400, f"patch {hidden[-1]} does not exist: there are {grid[0] * grid[1]}"
        )
    return ImageEdits(size, tiles, seed, hidden)


def apply_edits(edits: ImageEdits, pixels: np.ndarray, grid: ImageSize) -> np.ndarray:
    """Apply the edits to an image, uint8 [H, W, C]."""
    if edits.tiles > 1:
        order = numpy_generator(edits.seed, "shuffle", edits.tiles).permutation(edits.tiles**2)
        image = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None]  # [1, C, H, W]
        shuffled = shuffle_tiles(image, torch.from_numpy(order)[None])
        pixels = shuffled[0].permute(1, 2, 0).numpy()  # [H, W, C]
    if edits.hidden:
        hidden = np.isin(map_pixels_to_patches(edits.size, grid), edits.hidden)  # [H, W]
        pixels = np.where(hidden[:, :, None], np.uint8(0), pixels)
    return np.ascontiguousarray(pixels)


def map_pixels_to_patches(size: ImageSize, grid: ImageSize) -> np.ndarray:
    """Return the patch index of every pixel, int64 [H, W]."""
    rows, columns = (np.arange(n) * count // n for n, count in zip(size, grid, strict=True))
    return rows[:, None] * grid[1] + columns


def parse_integer_field(fields: Mapping[str, str], name: str, default: int) -> int:
    """Parse a whole number from a field, if it is there."""
    return parse_integer(fields[name], name) if name in fields else default


def parse_integer(word: str, name: str) -> int:
    """Parse a whole number; raise RequestRefused (400) for anything else."""
    word = word.strip()
    if not (word.isascii() and word.isdecimal() and len(word) < 11):
        raise RequestRefused(400, f"{name} must be whole numbers, 0 or above")
    return int(word)


def format_size(size: ImageSize) -> str:
    """Format height x width."""
    return f"{size[0]}x{size[1]}"
