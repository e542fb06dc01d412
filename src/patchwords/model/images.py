"""What a model takes: a batch of images as floats."""

from __future__ import annotations

from torch import Tensor

from patchwords.errors import ConfigError


def check_images(images: Tensor, channels: int) -> tuple[int, int]:
    """(H, W) of images [B, C, H, W]; raises ConfigError where they are something else."""
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
    """Layers counted from 0, or from the end if negative; one that is not there is an error."""
    for layer in layers:
        if not -count <= layer < count:
            raise ConfigError(
                f"layer {layer} does not exist: this model has {count}, 0 to {count - 1}"
            )
    return [layer % count for layer in layers]


def check_layer_boundary(layer: int, count: int) -> int:
    """A place between layers: 0 is before the first, `count` after the last."""
    if not 0 <= layer <= count:
        raise ConfigError(f"layer {layer} cannot be entered: give 0 to {count}, the latter the end")
    return layer
