"""What masked patch prediction predicts: the three targets of Appendix B.1.2.

Colours are those of the pixels as the encoder gets them, after augmentation, before they are
normalised. A colour is cut into 8 levels a channel ("3 bit"), evenly over [0, 255]; the paper
does not say where the levels begin. Three channels make 512 classes.

Sizes: B images, C channels, H W image, P patch size, N patches of an image, R of them corrupted,
G cells to a side of a patch, S = G * G cells, K = 8^C classes, V values predicted for a patch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.model.config import ViTConfig

COLOUR_LEVELS = 8  # of a channel: 3 bit
SMALL_PATCH_CELLS = 4  # cells to a side of the down-sized patch


class PatchTarget(Protocol):
    """One way to ask what was in a patch."""

    @property
    def outputs(self) -> int:
        """V"""
        ...

    def wanted(self, patches: Tensor) -> Tensor:
        """uint8 [B, R, C, P, P] -> what is to be predicted, [B, R, ...]"""
        ...

    def losses(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        """float32 [B, R, V] -> [B, R]"""
        ...

    def right(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        """float32 [B, R, V] -> [B, R], the share of a patch whose colour is right"""
        ...

    def colours(self, wanted: Tensor) -> Tensor:
        """What `wanted` gave -> int64 [B, R, S], the colour classes that are right"""
        ...

    def paint(self, predictions: Tensor) -> Tensor:
        """float32 [B, R, V] -> uint8 [B, R, C, P, P], as a picture"""
        ...


@dataclass(frozen=True)
class ColourTarget:
    """The class of the mean colour of each cell, by a softmax of K classes for each.

    One cell is the paper's target (1), the mean colour; 4 x 4 cells are (2), the down-sized patch.
    """

    cells: int  # G
    patch_size: int
    channels: int

    @property
    def outputs(self) -> int:
        return self.cells**2 * COLOUR_LEVELS**self.channels

    def wanted(self, patches: Tensor) -> Tensor:
        """-> int64 [B, R, S]"""
        return compute_colour_classes(patches, self.cells)

    def losses(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        scores = self.split(predictions)  # [B, R, S, K]
        losses = F.cross_entropy(scores.flatten(0, 2), wanted.flatten(), reduction="none")
        return losses.view(wanted.shape).mean(-1)

    def right(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        return (self.split(predictions).argmax(-1) == wanted).float().mean(-1)

    def colours(self, wanted: Tensor) -> Tensor:
        return wanted

    def paint(self, predictions: Tensor) -> Tensor:
        """Each cell in the middle of its class's levels."""
        classes = self.split(predictions).argmax(-1)  # [B, R, S]
        digits = [
            classes // COLOUR_LEVELS**place % COLOUR_LEVELS
            for place in reversed(range(self.channels))
        ]
        levels = torch.stack(digits, dim=2)  # [B, R, C, S]
        colours = ((levels + 0.5) * 255 / COLOUR_LEVELS).round().to(torch.uint8)
        rows = torch.arange(self.patch_size, device=colours.device) * self.cells // self.patch_size
        return colours.unflatten(-1, (self.cells, self.cells))[..., rows[:, None], rows]

    def split(self, predictions: Tensor) -> Tensor:
        """[B, R, V] -> [B, R, S, K]"""
        return predictions.unflatten(-1, (self.cells**2, -1))


@dataclass(frozen=True)
class PixelTarget:
    """Every pixel of the patch as a number, by the mean squared error: the paper's target (3).

    Right is a patch whose predicted pixels have a mean in the colour class of the true ones, so
    that all targets are judged by the same question.
    """

    preprocess: Preprocess
    patch_size: int
    channels: int

    @property
    def outputs(self) -> int:
        return self.channels * self.patch_size**2

    def wanted(self, patches: Tensor) -> Tensor:
        return patches

    def losses(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        pixels = self.preprocess.normalise(wanted.flatten(0, 1))  # [B * R, C, P, P]
        pixels = pixels.view(*wanted.shape[:2], -1)  # [B, R, V]
        return (predictions - pixels).square().mean(-1)

    def right(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        mean = self.pixels(predictions).mean((-2, -1))  # [B, R, C], of 0..255
        found = combine_levels(
            (mean * COLOUR_LEVELS / 255).floor().clamp(0, COLOUR_LEVELS - 1).long()
        )  # [B, R]
        return (found == self.colours(wanted)[..., 0]).float()

    def colours(self, wanted: Tensor) -> Tensor:
        return compute_colour_classes(wanted, 1)

    def paint(self, predictions: Tensor) -> Tensor:
        return self.pixels(predictions).clamp(0, 255).round().to(torch.uint8)

    def pixels(self, predictions: Tensor) -> Tensor:
        """[B, R, V] -> [B, R, C, P, P] of 0..255"""
        shape = (self.channels, self.patch_size, self.patch_size)
        mean, std = (
            torch.tensor(values, device=predictions.device)[:, None, None]  # [C, 1, 1]
            for values in (self.preprocess.mean, self.preprocess.std)
        )
        return (predictions.unflatten(-1, shape) * std + mean) * 255


def build_patch_target(name: str, config: ViTConfig, preprocess: Preprocess) -> PatchTarget:
    """The target by its name in `--target`; raises ConfigError for patches it does not fit."""
    size, channels = config.patch_size, config.channels
    if name == "pixels":
        return PixelTarget(preprocess, size, channels)
    if name == "small-patch" and size < SMALL_PATCH_CELLS:
        raise ConfigError(
            f"--target small-patch makes {SMALL_PATCH_CELLS}x{SMALL_PATCH_CELLS} of a patch, and the patches of this model "
            f"are {size}x{size}: choose --target pixels or mean-colour, or larger patches"
        )
    return ColourTarget(SMALL_PATCH_CELLS if name == "small-patch" else 1, size, channels)


def patchify(images: Tensor, size: int) -> Tensor:
    """[B, C, H, W] -> [B, N, C, P, P], row after row of the image"""
    x = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # [B, C, H/P, P, W/P, P]
    return x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def unpatchify(patches: Tensor, rows: int) -> Tensor:
    """[B, N, C, P, P], H/P -> [B, C, H, W]"""
    x = patches.unflatten(1, (rows, -1)).permute(0, 3, 1, 4, 2, 5)  # [B, C, H/P, P, W/P, P]
    return x.flatten(4, 5).flatten(2, 3)


def compute_colour_classes(patches: Tensor, cells: int) -> Tensor:
    """uint8 [B, R, C, P, P] -> int64 [B, R, S], the class of the mean colour of each cell.

    In whole numbers, so that a mean on the border of two levels falls alike on every device.
    Where P does not divide, cells share a line of pixels, as in an adaptive average pooling.
    """
    size = patches.shape[-1]
    edges = [(i * size // cells, math.ceil((i + 1) * size / cells)) for i in range(cells)]
    classes = []
    for top, bottom in edges:
        for left, right in edges:
            cell = patches[..., top:bottom, left:right]
            brightest = 255 * cell.shape[-1] * cell.shape[-2]
            levels = cell.sum((-2, -1), dtype=torch.int64) * COLOUR_LEVELS // brightest  # [B, R, C]
            classes.append(combine_levels(levels.clamp(max=COLOUR_LEVELS - 1)))
    return torch.stack(classes, dim=-1)


def combine_levels(levels: Tensor) -> Tensor:
    """int64 [..., C] levels of the channels -> [...] classes, red the most significant"""
    classes = levels[..., 0]
    for channel in range(1, levels.shape[-1]):
        classes = classes * COLOUR_LEVELS + levels[..., channel]
    return classes
