"""Masked patch prediction (Sec. 4.6, App. B.1.2): what is corrupted, and what it costs.

Half of the patch embeddings are corrupted (any share by `--mask-ratio`): 80 % of these by a learned
mask embedding, 10 % by the embedding of another patch of the same image, and 10 % are kept. The
loss is the mean over the corrupted patches alone, kept ones among them.

Which patches, and how, is a function of (seed, epoch, image), so batches, workers and ranks change
nothing. Sizes: B batch, C channels, H W image, N patches, R corrupted patches of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from patchwords.data.augment import Augment
from patchwords.data.batch_augment import augment_batch
from patchwords.data.examples import Data
from patchwords.data.loader import Batch
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.errors import ConfigError
from patchwords.model.config import ViTConfig
from patchwords.model.family import Config
from patchwords.model.masked import Corruption, MaskedViT, refuse_unfit, take
from patchwords.model.vit import ViT
from patchwords.noise import numpy_generator
from patchwords.train.choice import Choice
from patchwords.train.config import FinetuneConfig
from patchwords.train.job import Job
from patchwords.train.patch_targets import PatchTarget, build_target, cut_patches
from patchwords.train.plan import decided
from patchwords.train.pretrain_config import ObjectiveSettings, PretrainConfig, Target
from patchwords.train.start import Start, who_said
from patchwords.weights.pretrained import Pretrained

MASKED, OTHER = 0.8, 0.1  # of the corrupted patches; the rest is kept (App. B.1.2)
RATIO = 0.5  # of all patches (App. B.1.2; 15 % did slightly worse there)
TARGET: Target = "mean-colour"  # with the best few-shot results (App. B.1.2)


@dataclass(frozen=True)
class MaskedPrediction:
    """The cost of an image: the mean over its corrupted patches."""

    forward: Callable[[Tensor, Corruption], Tensor]  # uint8 images -> predictions [B, R, V]
    target: PatchTarget
    patch_size: int

    def __call__(self, images: Tensor, targets: Corruption) -> tuple[Tensor, Tensor]:
        """uint8 [B, C, H, W] -> ([B] losses, [] images; one is right by its share of patches)"""
        wanted = self.target.wanted(self.hidden(images, targets))
        predictions = self.forward(images, targets).float()  # [B, R, V]
        losses = self.target.losses(predictions, wanted).mean(1)
        return losses, self.target.right(predictions.detach(), wanted).mean(1).sum()

    def hidden(self, images: Tensor, corruption: Corruption) -> Tensor:
        """uint8 [B, C, H, W] -> uint8 [B, R, C, P, P], the corrupted patches"""
        patches = cut_patches(images, self.patch_size)  # [B, N, C, P, P]
        return take(patches.flatten(2), corruption.places).unflatten(2, patches.shape[2:])


@dataclass(frozen=True)
class PredictMasked:
    """Pre-training without labels."""

    objective_name: Literal["supervised", "masked"] = "masked"

    def classes(self, data: Data) -> tuple[str, ...]:
        return ()

    def settle(
        self, config: FinetuneConfig, data: Data, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[Choice]]:
        learn = learn_of(config)
        target, ratio = learn.target or TARGET, learn.mask_ratio or RATIO
        paper, said = "App. B.1.2", who_said(config)
        choices = [
            Choice("objective", "masked", f"colours of hidden patches ({paper}); no labels"),
            Choice("target", target, said if learn.target else paper),
            Choice("mask_ratio", ratio, said if learn.mask_ratio else paper),
        ]
        assert isinstance(config, PretrainConfig)
        return replace(config, learn=replace(learn, target=target, mask_ratio=ratio)), choices

    def learner(self, start: Start, config: FinetuneConfig) -> MaskedViT:
        refuse_unfit(start.model.config)
        assert isinstance(start.model, ViT)
        shape, learn = start.model.config, learn_of(config)
        corrupted(shape.patches, decided(learn.mask_ratio))  # or it raises
        target = build_target(decided(learn.target), shape, start.preprocess)
        return MaskedViT(start.model, target.outputs, config.seed)

    def preparation(self, job: Job) -> PrepareMasked:
        draw = draw_of(job.config, job.start.model.config)
        return PrepareMasked(draw, job.config.augment, job.device)

    def objective(self, job: Job, learner: nn.Module) -> MaskedPrediction:
        return prediction(job.config, job.start.model.config, job.start.preprocess, learner)


def prediction(
    config: FinetuneConfig, shape: Config, preprocess: Preprocess, learner: nn.Module
) -> MaskedPrediction:
    """The objective of a MaskedViT of this shape; `learner` may have been compiled or wrapped."""
    assert isinstance(shape, ViTConfig)
    target = build_target(decided(learn_of(config).target), shape, preprocess)

    def forward(images: Tensor, corruption: Corruption) -> Tensor:
        return learner(preprocess.normalise(images), corruption)

    return MaskedPrediction(forward, target, shape.patch_size)


def draw_of(config: FinetuneConfig, shape: Config) -> Draw:
    """The draw of a run."""
    assert isinstance(shape, ViTConfig)
    return Draw(shape.patches, decided(learn_of(config).mask_ratio), config.seed)


@dataclass(frozen=True)
class Draw:
    """Decides for each image which of its patches are corrupted."""

    patches: int  # N
    ratio: float
    seed: int

    def __call__(self, places: Iterable[tuple[int | str, ...]]) -> Corruption:
        """The place of each image, such as (epoch, sample, repeat) -> Corruption, on the CPU"""
        images, count = list(places), corrupted(self.patches, self.ratio)
        chosen = np.empty((len(images), count), np.int64)
        sources = np.empty((len(images), self.patches), np.int64)
        masked = np.empty((len(images), self.patches), np.bool_)
        for row, place in enumerate(images):
            generator = numpy_generator(self.seed, "mask", *place)
            drawn = draw_corruption(generator, self.patches, count)
            chosen[row], sources[row], masked[row] = drawn
        return Corruption(*map(torch.from_numpy, (chosen, sources, masked)))


@dataclass(frozen=True)
class PrepareMasked:
    """(batch, step) -> uint8 images [B, C, H, W] on the device, augmented, and their corruption."""

    draw: Draw
    augment: Augment
    device: Device

    def __call__(self, batch: Batch, step: int) -> tuple[Tensor, Corruption]:
        place = self.device.torch_device
        images, _ = augment_batch(
            batch.images.to(place, non_blocking=True),
            batch.labels,
            batch.places,
            self.augment,
            self.draw.seed,
            0,  # classes: images are not mixed, so that no label is made
            step,
        )
        return images, self.draw(batch.places).to(place)


def draw_corruption(
    generator: np.random.Generator, patches: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> places int64 [R] rising, sources int64 [N], masked bool [N]; see `Corruption`"""
    places = np.sort(generator.permutation(patches)[:count])
    fate, step = generator.random(count), generator.integers(1, patches, count)
    sources, masked = np.arange(patches), np.zeros(patches, np.bool_)
    masked[places[fate < MASKED]] = True
    swapped = (fate >= MASKED) & (fate < MASKED + OTHER)
    sources[places[swapped]] = (places[swapped] + step[swapped]) % patches  # never itself
    return places, sources, masked


def corrupted(patches: int, ratio: float) -> int:
    """How many patches of an image are corrupted; raises ConfigError where that is none."""
    count = round(ratio * patches)
    if count:
        return count
    raise ConfigError(
        f"--mask-ratio {ratio:g} of {patches} patches is none: {1 / patches:.2g} would be one"
    )


def learn_of(config: FinetuneConfig) -> ObjectiveSettings:
    assert isinstance(config, PretrainConfig)
    return config.learn
