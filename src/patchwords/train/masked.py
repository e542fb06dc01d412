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

from patchwords.data.augment import AugmentSettings
from patchwords.data.batch_augment import augment_batch
from patchwords.data.examples import DatasetSplits
from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.errors import ConfigError
from patchwords.model.config import ViTConfig
from patchwords.model.family import ModelConfig
from patchwords.model.masked import MaskedViT, PatchCorruption, check_maskable, gather_patches
from patchwords.model.vit import ViT
from patchwords.noise import numpy_generator
from patchwords.train.choice import ResolvedSetting
from patchwords.train.config import FinetuneConfig
from patchwords.train.job import TrainingRun
from patchwords.train.patch_targets import PatchTarget, build_patch_target, patchify
from patchwords.train.plan import require_setting
from patchwords.train.pretrain_config import MaskedTargetName, ObjectiveSettings, PretrainConfig
from patchwords.train.start import InitialModel, describe_setting_source
from patchwords.weights.pretrained import Pretrained

MASKED, OTHER = 0.8, 0.1  # of the corrupted patches; the rest is kept (App. B.1.2)
DEFAULT_MASK_RATIO = 0.5  # of all patches (App. B.1.2; 15 % did slightly worse there)
DEFAULT_TARGET: MaskedTargetName = "mean-colour"  # with the best few-shot results (App. B.1.2)


@dataclass(frozen=True)
class MaskedPatchLoss:
    """The cost of an image: the mean over its corrupted patches."""

    forward: Callable[[Tensor, PatchCorruption], Tensor]  # uint8 images -> predictions [B, R, V]
    target: PatchTarget
    patch_size: int

    def __call__(self, images: Tensor, targets: PatchCorruption) -> tuple[Tensor, Tensor]:
        """uint8 [B, C, H, W] -> ([B] losses, [] images; one is right by its share of patches)"""
        wanted = self.target.wanted(self.hidden(images, targets))
        predictions = self.forward(images, targets).float()  # [B, R, V]
        losses = self.target.losses(predictions, wanted).mean(1)
        return losses, self.target.right(predictions.detach(), wanted).mean(1).sum()

    def hidden(self, images: Tensor, corruption: PatchCorruption) -> Tensor:
        """uint8 [B, C, H, W] -> uint8 [B, R, C, P, P], the corrupted patches"""
        patches = patchify(images, self.patch_size)  # [B, N, C, P, P]
        return gather_patches(patches.flatten(2), corruption.places).unflatten(2, patches.shape[2:])


@dataclass(frozen=True)
class PredictMasked:
    """Pre-training without labels."""

    objective_name: Literal["supervised", "masked"] = "masked"

    def classes(self, data: DatasetSplits) -> tuple[str, ...]:
        return ()

    def settle(
        self, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        learn = get_objective_settings(config)
        target, ratio = learn.target or DEFAULT_TARGET, learn.mask_ratio or DEFAULT_MASK_RATIO
        paper, said = "App. B.1.2", describe_setting_source(config)
        choices = [
            ResolvedSetting(
                "objective", "masked", f"colours of hidden patches ({paper}); no labels"
            ),
            ResolvedSetting("target", target, said if learn.target else paper),
            ResolvedSetting("mask_ratio", ratio, said if learn.mask_ratio else paper),
        ]
        assert isinstance(config, PretrainConfig)
        return replace(config, learn=replace(learn, target=target, mask_ratio=ratio)), choices

    def learner(self, start: InitialModel, config: FinetuneConfig) -> MaskedViT:
        check_maskable(start.model.config)
        assert isinstance(start.model, ViT)
        shape, learn = start.model.config, get_objective_settings(config)
        count_corrupted_patches(shape.patches, require_setting(learn.mask_ratio))  # or it raises
        target = build_patch_target(require_setting(learn.target), shape, start.preprocess)
        return MaskedViT(start.model, target.outputs, config.seed)

    def preparation(self, job: TrainingRun) -> MaskedBatchPreparer:
        draw = build_mask_sampler(job.config, job.start.model.config)
        return MaskedBatchPreparer(draw, job.config.augment, job.device)

    def objective(self, job: TrainingRun, learner: nn.Module) -> MaskedPatchLoss:
        return build_masked_patch_loss(
            job.config, job.start.model.config, job.start.preprocess, learner
        )


def build_masked_patch_loss(
    config: FinetuneConfig, shape: ModelConfig, preprocess: Preprocess, learner: nn.Module
) -> MaskedPatchLoss:
    """The objective of a MaskedViT of this shape; `learner` may have been compiled or wrapped."""
    assert isinstance(shape, ViTConfig)
    target = build_patch_target(
        require_setting(get_objective_settings(config).target), shape, preprocess
    )

    def forward(images: Tensor, corruption: PatchCorruption) -> Tensor:
        return learner(preprocess.normalise(images), corruption)

    return MaskedPatchLoss(forward, target, shape.patch_size)


def build_mask_sampler(config: FinetuneConfig, shape: ModelConfig) -> Draw:
    """The draw of a run."""
    assert isinstance(shape, ViTConfig)
    return MaskSampler(
        shape.patches, require_setting(get_objective_settings(config).mask_ratio), config.seed
    )


@dataclass(frozen=True)
class MaskSampler:
    """Decides for each image which of its patches are corrupted."""

    patches: int  # N
    ratio: float
    seed: int

    def __call__(self, places: Iterable[tuple[int | str, ...]]) -> PatchCorruption:
        """The place of each image, such as (epoch, sample, repeat) -> Corruption, on the CPU"""
        images, count = list(places), count_corrupted_patches(self.patches, self.ratio)
        chosen = np.empty((len(images), count), np.int64)
        sources = np.empty((len(images), self.patches), np.int64)
        masked = np.empty((len(images), self.patches), np.bool_)
        for row, place in enumerate(images):
            generator = numpy_generator(self.seed, "mask", *place)
            drawn = draw_corruption(generator, self.patches, count)
            chosen[row], sources[row], masked[row] = drawn
        return PatchCorruption(*map(torch.from_numpy, (chosen, sources, masked)))


@dataclass(frozen=True)
class MaskedBatchPreparer:
    """(batch, step) -> uint8 images [B, C, H, W] on the device, augmented, and their corruption."""

    draw: MaskSampler
    augment: AugmentSettings
    device: Device

    def __call__(self, batch: ImageBatch, step: int) -> tuple[Tensor, PatchCorruption]:
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
    """-> places int64 [R] rising, sources int64 [N], masked bool [N]; see `PatchCorruption`"""
    places = np.sort(generator.permutation(patches)[:count])
    fate, step = generator.random(count), generator.integers(1, patches, count)
    sources, masked = np.arange(patches), np.zeros(patches, np.bool_)
    masked[places[fate < MASKED]] = True
    swapped = (fate >= MASKED) & (fate < MASKED + OTHER)
    sources[places[swapped]] = (places[swapped] + step[swapped]) % patches  # never itself
    return places, sources, masked


def count_corrupted_patches(patches: int, ratio: float) -> int:
    """How many patches of an image are corrupted; raises ConfigError where that is none."""
    count = round(ratio * patches)
    if count:
        return count
    raise ConfigError(
        f"--mask-ratio {ratio:g} of {patches} patches is none: {1 / patches:.2g} would be one"
    )


def get_objective_settings(config: FinetuneConfig) -> ObjectiveSettings:
    assert isinstance(config, PretrainConfig)
    return config.learn
