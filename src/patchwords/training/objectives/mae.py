"""Masked autoencoding (MAE, arXiv 2111.06377): pixels of hidden patches from the visible ones.

Most patches of each image are hidden (three quarters, any share by `--mask-ratio`). The loss is the
squared error of the pixels, mean over the hidden patches alone; the pixels of each patch are
normalised to a mean of 0 and a variance of 1 first, so that it asks for structure, not for colour.

Which patches are hidden is a function of (seed, epoch, image), so batches, workers and ranks
change nothing. Sizes: B batch, C channels, N patches, S visible and R hidden patches, P patch
size, V = P * P * C pixels of a patch, in the order (row, column, channel).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from patchwords.data.dataset import DatasetSplits
from patchwords.data.loader import ImageBatch
from patchwords.errors import ConfigError
from patchwords.models.pretraining.mae import (
    MaskedAutoencoder,
    PatchMask,
    check_autoencoder,
    make_decoder_config,
)
from patchwords.models.pretraining.masked import gather_patches
from patchwords.models.vit import ViT
from patchwords.rng import numpy_generator
from patchwords.training.config import FinetuneConfig, PretrainConfig
from patchwords.training.model_setup import (
    InitialModel,
    describe_setting_source,
    resolve_vit_width,
)
from patchwords.training.objectives import Objective
from patchwords.training.objectives.masked import get_objective_settings, patchify
from patchwords.training.plan import ResolvedSetting, require_setting
from patchwords.weights.pretrained import Pretrained

PAPER = "MAE, Table 8"
DEFAULT_MASK_RATIO = 0.75  # best for fine-tuning and for linear probes (Fig. 5 there)
PAPER_DECODER = (512, 8)  # width and depth, for ViT-B, L and H
BASE_WIDTH = 768  # of ViT-B, the smallest encoder of the paper
SMALL_DECODER_DEPTH = 2
VARIANCE_EPSILON = 1e-6  # models_mae.py: norm_pix_loss


class MaskedAutoencoding(Objective):
    """Masked autoencoding: the loss of an image is the mean over its hidden patches."""

    default_recipe = "mae"
    costs_as_model = False  # the encoder sees a part of the patches
    adam_betas = (0.9, 0.95)  # Table 8
    weight_decay_rules: ClassVar[Mapping[str, bool]] = {
        r"decoder\.(blocks\.\d+\.(mlp|attention)\.\w+|embed|prediction)\.weight": True,
        r"decoder\.(blocks\.\d+\.(mlp|attention)\.\w+|embed|prediction)\.bias": False,
        r"decoder\.(blocks\.\d+\.)?norm\d?\.(weight|bias)": False,
        r"decoder\.mask_token": False,
    }

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        learn, source = get_objective_settings(config), describe_setting_source(config)
        width, depth, why = choose_decoder(resolve_vit_width(config, origin) or BASE_WIDTH)
        learned = replace(
            learn,
            mask_ratio=learn.mask_ratio or DEFAULT_MASK_RATIO,
            decoder_width=learn.decoder_width or width,
            decoder_depth=learn.decoder_depth or depth,
        )
        choices = [ResolvedSetting("objective", "mae", "pixels of hidden patches; no labels")]
        for name, reason in (("mask_ratio", PAPER), ("decoder_width", why), ("decoder_depth", why)):
            given = getattr(learn, name)
            choices.append(
                ResolvedSetting(name, getattr(learned, name), source if given else reason)
            )
        assert isinstance(config, PretrainConfig)
        return replace(config, learn=learned), choices

    def build(self, backbone: InitialModel, data: DatasetSplits) -> MaskedAutoencoder:
        check_autoencoder(backbone.model.config)
        assert isinstance(backbone.model, ViT)
        shape, learn = backbone.model.config, get_objective_settings(self.config)
        decoder = make_decoder_config(
            shape, require_setting(learn.decoder_width), require_setting(learn.decoder_depth)
        )
        self.patch_size = shape.patch_size
        self.draw = VisibleSampler(
            shape.patches, require_setting(learn.mask_ratio), self.config.seed
        )
        count_visible_patches(self.draw.patches, self.draw.ratio)  # or it raises
        new = self.config.weights is None
        return MaskedAutoencoder(backbone.model, decoder, self.config.seed, new_positions=new)

    def prepare(self, batch: ImageBatch, step: int) -> ImageBatch:
        """Add the mask of each image by its place: another one in each epoch."""
        return replace(batch, targets=self.draw(batch.places).to(batch.images.device))

    def prepare_held_out(self, batch: ImageBatch) -> ImageBatch:
        """Add the mask of held-out images, by their index among all of them."""
        mask = self.draw(("held out", index) for index in batch.indices.tolist())
        return replace(batch, targets=mask.to(batch.images.device))

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the squared error of the normalised pixels of hidden patches."""
        wanted, _, _ = normalise_patches(self.hidden_pixels(batch))
        return (self.predict(learner, batch) - wanted).square().mean(), {}

    def predict(self, learner: nn.Module, batch: ImageBatch) -> Tensor:
        """Compute predictions for the hidden patches, float32 [B, R, V]."""
        predictions: Tensor = learner(self.preprocess.normalise(batch.images), batch.targets)
        return predictions.float()

    def hidden_pixels(self, batch: ImageBatch) -> Tensor:
        """Return the pixels of the hidden patches as the encoder would get them, [B, R, V]."""
        pixels = flatten_patches(self.preprocess.normalise(batch.images), self.patch_size)
        return gather_patches(pixels, batch.targets.hidden)

    def paint(self, learner: nn.Module, batch: ImageBatch) -> Tensor:
        """Draw predictions for the hidden patches as pixels, uint8 [B, R, C, P, P].

        Each patch gets its own mean and standard deviation back, which the model does not predict.
        """
        _, mean, std = normalise_patches(self.hidden_pixels(batch))
        pixels = self.predict(learner, batch) * std + mean  # [B, R, V]
        size, channels = self.patch_size, self.preprocess.channels
        patches = pixels.unflatten(-1, (size, size, channels)).movedim(-1, 2)  # [B, R, C, P, P]
        scale, shift = (
            torch.tensor(values, device=pixels.device)[:, None, None]  # [C, 1, 1]
            for values in (self.preprocess.std, self.preprocess.mean)
        )
        return ((patches * scale + shift) * 255).clamp(0, 255).round().to(torch.uint8)


@dataclass(frozen=True)
class VisibleSampler:
    """Sampler of the visible patches of each image."""

    patches: int  # N
    ratio: float
    seed: int

    def __call__(self, places: Iterable[tuple[int | str, ...]]) -> PatchMask:
        """Draw the masks of images by their places, such as (epoch, sample, repeat)."""
        rows = list(places)
        count = count_visible_patches(self.patches, self.ratio)
        drawn = np.empty((len(rows), self.patches), np.int64)
        for row, place in enumerate(rows):
            order = numpy_generator(self.seed, "mae", *place).permutation(self.patches)
            drawn[row, :count] = np.sort(order[:count])
            drawn[row, count:] = np.sort(order[count:])
        orders = torch.from_numpy(drawn)  # [B, N]
        return PatchMask(orders[:, :count], orders[:, count:])


def count_visible_patches(patches: int, ratio: float) -> int:
    """Count the patches that stay visible, as the official code rounds; one at least is hidden.

    Raises ConfigError where none stays.

    >>> count_visible_patches(196, 0.75), count_visible_patches(10, 0.9)
    (49, 1)
    """
    visible = int(round(patches * (1 - ratio), 6))  # 10 * (1 - 0.9) is 0.9999999999999998
    if not visible:
        most = math.floor(100 * (1 - 1 / patches)) / 100
        raise ConfigError(
            f"--mask-ratio {ratio:g} leaves none of {patches} patches to see: "
            + (f"choose {most:g} or less" if most else "choose smaller patches")
        )
    return min(visible, patches - 1)


def choose_decoder(encoder_width: int) -> tuple[int, int, str]:
    """Choose width and depth of the decoder by the width of the encoder; -> both, and why."""
    if encoder_width >= BASE_WIDTH:
        return *PAPER_DECODER, PAPER
    width = max(16, encoder_width // 2 // 16 * 16)
    return width, SMALL_DECODER_DEPTH, "half as wide as the encoder: light for a small model"


def flatten_patches(images: Tensor, size: int) -> Tensor:
    """Cut images [B, C, H, W] into the pixels of patches, [B, N, V]."""
    return patchify(images, size).movedim(2, -1).flatten(2)


def normalise_patches(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise the pixels of patches [B, R, V]; -> them, mean and deviation [B, R, 1]."""
    variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)  # unbiased, as there
    std = (variance + VARIANCE_EPSILON).sqrt()
    return (pixels - mean) / std, mean, std
