"""Checks of model settings and of the images given to a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchwords.errors import ConfigError, did_you_mean

if TYPE_CHECKING:  # configs and names are checked without torch
    from torch import Tensor


MAX_IMAGE_PIXELS = 2**26  # 8,192 x 8,192: 768 MiB as float32, before the first layer


def check_known_settings(settings: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Raise on the first setting that `what` ("a ViT") does not have."""
    names = list(known)
    for name in settings:
        if name not in names:
            hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
            if name in {"pretrained", "weights", "checkpoint"}:
                hint = "; from_pretrained(NAME) loads a model with its weights"
            raise ConfigError(f"{what} has no setting {name!r}{hint}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        hint = did_you_mean(str(value), choices) or f"; choose {', '.join(choices)}"
        raise ConfigError(f"unknown {name} {value!r}{hint}")


def check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a whole number from 1 up, not {value!r}")


def check_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {value!r}")


def check_number(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    return float(value)


def check_positive(name: str, value: Any) -> None:
    if not check_number(name, value) > 0:
        raise ConfigError(f"{name} {value} must be above 0; 1e-6 is usual")


def to_height_width(size: int | Sequence[int]) -> tuple[int, int]:
    """An image size as (H, W): one number is a square.

    >>> to_height_width(224), to_height_width([96, 160])
    ((224, 224), (96, 160))
    """
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ConfigError(f"image_size {size!r} must be one number or (height, width)")
    for side in sides:
        check_count("image_size", side)
    if sides[0] * sides[1] > MAX_IMAGE_PIXELS:
        raise ConfigError(
            f"image_size {sides[0]}x{sides[1]} has more than {MAX_IMAGE_PIXELS:,} pixels, the "
            "maximum; choose a smaller one"
        )
    return sides[0], sides[1]


def check_patch_grid(image_size: tuple[int, int], patch_size: int, stride: int = 1) -> None:
    """Raise where P does not divide the grid, and names the image sizes nearest to these.

    `stride` is that of the convolutions before the patches: their grid is H/stride x W/stride,
    rounded up.
    """
    grid = [-(-side // stride) for side in image_size]
    if not any(side % patch_size for side in grid):
        return
    below = [side // patch_size * patch_size * stride for side in grid]
    above = [-(-side // patch_size) * patch_size * stride for side in grid]
    square = image_size[0] == image_size[1]
    would_do = [
        str(size[0]) if square else f"{size[0]}x{size[1]}" for size in (below, above) if min(size)
    ]
    through = f", {grid[0]}x{grid[1]} after the convolutions," if stride > 1 else ""
    raise ConfigError(
        f"image size {image_size[0]}x{image_size[1]}{through} does not divide into patches of "
        f"{patch_size}: {' or '.join(would_do)} would do"
    )


def check_window(window: int, grid: tuple[int, int]) -> None:
    """Raise where local attention's neighbourhood is even or does not fit into the grid."""
    check_count("window", window)
    largest = min(grid) - 1 + min(grid) % 2
    if window % 2 and window <= largest:
        return
    would_do = [str(side) for side in range(1, largest + 1, 2)][-3:]
    raise ConfigError(
        f"window {window} has no place in a grid of {grid[0]}x{grid[1]} patches: it must be odd "
        f"and fit in; {' or '.join(would_do)} would do"
    )


def check_images(images: Tensor, channels: int) -> tuple[int, int]:
    """(H, W) of images [B, C, H, W]; raises ConfigError for any other tensor."""
    if images.ndim != 4:
        raise ConfigError(
            f"images of shape {list(images.shape)} are not [B, C, H, W]"
            + ("; images[None] adds a batch axis" if images.ndim == 3 else "")
        )
    if images.shape[1] != channels:
        raise ConfigError(
            f"images of shape {list(images.shape)} have {images.shape[1]} channels (axis 1), "
            f"the model takes {channels}: create it with channels={images.shape[1]}"
        )
    if not images.is_floating_point():
        raise ConfigError(
            f"images are {str(images.dtype).removeprefix('torch.')}, the model takes floats "
            "in [-1, 1]: images.float() / 127.5 - 1"
        )
    height, width = images.shape[-2:]
    if min(height, width) < 1:
        raise ConfigError(f"images of shape {list(images.shape)} have no pixels")
    return height, width


def check_layer_indices(layers: list[int], count: int) -> list[int]:
    """Count layers from 0, also negative ones; raises ConfigError for one that does not exist."""
    for layer in layers:
        if not -count <= layer < count:
            raise ConfigError(
                f"layer {layer} does not exist: this model has {count}, 0 to {count - 1}"
            )
    return [layer % count for layer in layers]


def check_layer_boundary(layer: int, count: int) -> int:
    """Check a boundary between layers: 0 is before the first, `count` after the last."""
    if not 0 <= layer <= count:
        raise ConfigError(f"layer {layer} cannot be entered: give 0 to {count}, the latter the end")
    return layer
