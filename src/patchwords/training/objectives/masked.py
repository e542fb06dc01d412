"""Masked patch prediction (Sec. 4.6, App. B.1.2): what is corrupted, and what it costs.

Half of the patch embeddings are corrupted (any share by `--mask-ratio`): 80 % of these by a learned
mask embedding, 10 % by the embedding of another patch of the same image, and 10 % are kept. The
loss is the mean over the corrupted patches alone, kept ones among them.

Which patches, and how, is a function of (seed, epoch, image), so batches, workers and ranks change
nothing. Sizes: B batch, C channels, H W image, N patches, R corrupted patches of an image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.dataset import DatasetSplits
from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.pretraining.masked import (
    MaskedViT,
    PatchCorruption,
    check_maskable,
    gather_patches,
)
from patchwords.models.vit import ViT
from patchwords.rng import numpy_generator
from patchwords.training.config import FinetuneConfig, PretrainConfig
from patchwords.training.model_setup import InitialModel, describe_setting_source
from patchwords.training.objective_settings import MaskedTargetName, ObjectiveSettings
from patchwords.training.objectives import Objective
from patchwords.training.plan import ResolvedSetting, require_setting
from patchwords.weights.pretrained import Pretrained

# What masked patch prediction predicts: the three targets of Appendix B.1.2.
#
# Colours are those of the pixels as the encoder gets them, after augmentation, before they are
# normalised. A colour is cut into 8 levels a channel ("3 bit"), evenly over [0, 255]; the paper
# does not say where the levels begin. Three channels make 512 classes.
#
# Sizes: B images, C channels, H W image, P patch size, N patches of an image, R of them corrupted,
# G cells to a side of a patch, S = G * G cells, K = 8^C classes, V values predicted for a patch.


COLOUR_LEVELS = 8  # of a channel: 3 bit
SMALL_PATCH_CELLS = 4  # cells to a side of the down-sized patch


class PatchTarget(Protocol):
    """Target of masked patch prediction: what the model predicts of a patch."""

    @property
    def outputs(self) -> int:
        """V, outputs for each patch."""
        ...

    def wanted(self, patches: Tensor) -> Tensor:
        """Compute the targets [B, R, ...] of patches, uint8 [B, R, C, P, P]."""
        ...

    def losses(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        """Compute the loss of each patch, [B, R], of predictions, float32 [B, R, V]."""
        ...

    def right(self, predictions: Tensor, wanted: Tensor) -> Tensor:
        """Compute the share of each patch whose colour is right, [B, R]."""
        ...

    def colours(self, wanted: Tensor) -> Tensor:
        """Return the true colour classes, int64 [B, R, S], of the targets."""
        ...

    def paint(self, predictions: Tensor) -> Tensor:
        """Draw predictions, float32 [B, R, V], as pixels, uint8 [B, R, C, P, P]."""
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
        """Compute colour classes, int64 [B, R, S]."""
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
        """Draw each cell in the middle of the levels of its class."""
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
        """Split the outputs [B, R, V] by cell: [B, R, S, K]."""
        return predictions.unflatten(-1, (self.cells**2, -1))


@dataclass(frozen=True)
class PixelTarget:
    """Every pixel of the patch, by the mean squared error: the paper's target (3).

    A patch counts as right if the mean of its predicted pixels is in the colour class of the true
    ones, so that all targets have the same accuracy.
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
        """Scale the outputs [B, R, V] to pixels of 0 to 255, [B, R, C, P, P]."""
        shape = (self.channels, self.patch_size, self.patch_size)
        mean, std = (
            torch.tensor(values, device=predictions.device)[:, None, None]  # [C, 1, 1]
            for values in (self.preprocess.mean, self.preprocess.std)
        )
        return (predictions.unflatten(-1, shape) * std + mean) * 255


def build_patch_target(name: str, config: ViTConfig, preprocess: Preprocess) -> PatchTarget:
    """Build a target by its name in `--target`; raise ConfigError if it does not fit the patches."""
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
    """Cut images [B, C, H, W] into patches [B, N, C, P, P], row by row."""
    x = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # [B, C, H/P, P, W/P, P]
    return x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def unpatchify(patches: Tensor, rows: int) -> Tensor:
    """Join patches [B, N, C, P, P] in H/P rows to images [B, C, H, W]."""
    x = patches.unflatten(1, (rows, -1)).permute(0, 3, 1, 4, 2, 5)  # [B, C, H/P, P, W/P, P]
    return x.flatten(4, 5).flatten(2, 3)


def compute_colour_classes(patches: Tensor, cells: int) -> Tensor:
    """Compute the class of the mean colour of each cell, int64 [B, R, S].

    `patches` are uint8 [B, R, C, P, P]. Sums are integers, so that a mean at the border of two
    levels gets the same class on every device. If P is not a multiple of the cells, they share a
    line of pixels, as in adaptive average pooling.
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
    """Combine the levels of channels, int64 [..., C], to classes [...]; red counts most."""
    classes = levels[..., 0]
    for channel in range(1, levels.shape[-1]):
        classes = classes * COLOUR_LEVELS + levels[..., channel]
    return classes


MASKED, OTHER = 0.8, 0.1  # of the corrupted patches; the rest is kept (App. B.1.2)
DEFAULT_MASK_RATIO = 0.5  # of all patches (App. B.1.2; 15 % did slightly worse there)
DEFAULT_TARGET: MaskedTargetName = "mean-colour"  # with the best few-shot results (App. B.1.2)


class MaskedPatchPrediction(Objective):
    """Masked patch prediction: the loss of an image is the mean over its corrupted patches."""

    primary_metric, higher_is_better = "accuracy", True
    formats: ClassVar[Mapping[str, str]] = {"accuracy": ".1%"}
    default_recipe = "masked"

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        learn = get_objective_settings(config)
        target, ratio = learn.target or DEFAULT_TARGET, learn.mask_ratio or DEFAULT_MASK_RATIO
        paper, source = "App. B.1.2", describe_setting_source(config)
        choices = [
            ResolvedSetting(
                "objective", "masked", f"colours of hidden patches ({paper}); no labels"
            ),
            ResolvedSetting("target", target, source if learn.target else paper),
            ResolvedSetting("mask_ratio", ratio, source if learn.mask_ratio else paper),
        ]
        assert isinstance(config, PretrainConfig)
        return replace(config, learn=replace(learn, target=target, mask_ratio=ratio)), choices

    def build(self, backbone: InitialModel, data: DatasetSplits) -> MaskedViT:
        check_maskable(backbone.model.config)
        assert isinstance(backbone.model, ViT)
        shape, learn = backbone.model.config, get_objective_settings(self.config)
        ratio = require_setting(learn.mask_ratio)
        count_corrupted_patches(shape.patches, ratio)  # or it raises
        self.patch_size = shape.patch_size
        self.target = build_patch_target(require_setting(learn.target), shape, self.preprocess)
        self.draw = MaskSampler(shape.patches, ratio, self.config.seed)
        return MaskedViT(backbone.model, self.target.outputs, self.config.seed)

    def prepare(self, batch: ImageBatch, step: int) -> ImageBatch:
        """Add the corruption of each image by its place: other patches in each epoch."""
        return replace(batch, targets=self.draw(batch.places).to(batch.images.device))

    def prepare_held_out(self, batch: ImageBatch) -> ImageBatch:
        """Add the corruption of held-out images, by their index among all of them."""
        corruption = self.draw(("held out", index) for index in batch.indices.tolist())
        return replace(batch, targets=corruption.to(batch.images.device))

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss, and the share of corrupted patches whose colour is right."""
        hidden = self.target.wanted(self.hidden_patches(batch))
        predictions = self.predict(learner, batch)  # [B, R, V]
        right = self.target.right(predictions.detach(), hidden).mean()
        return self.target.losses(predictions, hidden).mean(), {"accuracy": right}

    def predict(self, learner: nn.Module, batch: ImageBatch) -> Tensor:
        """Compute predictions for the corrupted patches, float32 [B, R, V]."""
        images = self.preprocess.normalise(batch.images)
        predictions: Tensor = learner(images, batch.targets)
        return predictions.float()

    def hidden_patches(self, batch: ImageBatch) -> Tensor:
        """Return the corrupted patches as they were, uint8 [B, R, C, P, P]."""
        patches = patchify(batch.images, self.patch_size)  # [B, N, C, P, P]
        places = batch.targets.places
        return gather_patches(patches.flatten(2), places).unflatten(2, patches.shape[2:])


@dataclass(frozen=True)
class MaskSampler:
    """Sampler of the corrupted patches of each image."""

    patches: int  # N
    ratio: float
    seed: int

    def __call__(self, places: Iterable[tuple[int | str, ...]]) -> PatchCorruption:
        """Draw the corruption of images by their places, such as (epoch, sample, repeat)."""
        images, count = list(places), count_corrupted_patches(self.patches, self.ratio)
        chosen = np.empty((len(images), count), np.int64)
        sources = np.empty((len(images), self.patches), np.int64)
        masked = np.empty((len(images), self.patches), np.bool_)
        for row, place in enumerate(images):
            generator = numpy_generator(self.seed, "mask", *place)
            drawn = draw_corruption(generator, self.patches, count)
            chosen[row], sources[row], masked[row] = drawn
        return PatchCorruption(*map(torch.from_numpy, (chosen, sources, masked)))


def draw_corruption(
    generator: np.random.Generator, patches: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw places int64 [R] (sorted), sources int64 [N] and masked bool [N] of one image."""
    places = np.sort(generator.permutation(patches)[:count])
    fate, step = generator.random(count), generator.integers(1, patches, count)
    sources, masked = np.arange(patches), np.zeros(patches, np.bool_)
    masked[places[fate < MASKED]] = True
    swapped = (fate >= MASKED) & (fate < MASKED + OTHER)
    sources[places[swapped]] = (places[swapped] + step[swapped]) % patches  # never itself
    return places, sources, masked


def count_corrupted_patches(patches: int, ratio: float) -> int:
    """Count the corrupted patches of an image; raise ConfigError if there are none."""
    count = round(ratio * patches)
    if count:
        return count
    raise ConfigError(
        f"--mask-ratio {ratio:g} of {patches} patches is none: {1 / patches:.2g} would be one"
    )


def get_objective_settings(config: FinetuneConfig) -> ObjectiveSettings:
    assert isinstance(config, PretrainConfig)
    return config.learn
