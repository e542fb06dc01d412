"""Frozen layers: a model split into the layers in front of those that learn, and the rest.

Sizes: B images, C channels, H W image. What goes from the front to the rest is `activations`: the
tokens [B, T, D] or feature maps [B, c, h, w] that enter the first layer that learns. If only the
head learns they are pooled, [B, D] or [B, C'], as pooling learns nothing except with "map".
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.errors import ConfigError
from patchwords.files import GIB
from patchwords.models.build import Model
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT
from patchwords.training.config import FinetuneConfig, FrozenMode, parse_train_layers
from patchwords.training.logs.run_folder import RunFolder
from patchwords.training.model_setup import InitialModel
from patchwords.training.plan import ResolvedSetting, TrainingPlan


@dataclass(frozen=True)
class FrozenBackbone:
    """Model split at the layer that `--train` names."""

    model: Model
    first: int  # the first layer that learns; the number of layers: the head alone does

    def activations(self, images: Tensor) -> Tensor:
        """Compute the output of the frozen layers for normalised images [B, C, H, W]."""
        model = self.model
        if self.first < model.config.layers:
            return model.forward_until(images, self.first)
        # As the model's own forward pass has it, to the bit.
        features = (
            model.encode(images, model.config.num_read_tokens)
            if isinstance(model, ViT)
            else model.forward_features(images)
        )
        return features if self.pool_learns else model.head.pooled(features)

    def rest(self, activations: Tensor) -> Tensor:
        """Compute logits [B, classes] of activations."""
        model = self.model
        if self.first < model.config.layers:
            return model.forward_from(activations, self.first)
        if self.pool_learns:
            return model.forward_head(activations)
        return model.head.classify(activations)

    @property
    def pool_learns(self) -> bool:
        config = self.model.config
        return isinstance(config, ViTConfig) and config.classifier == "map"

    @property
    def draws(self) -> bool:
        """Whether the frozen layers are random in training: dropout, or stochastic depth.

        Stochastic depth spares the first layer.
        """
        config = self.model.config
        if not isinstance(config, ViTConfig):
            return False
        return config.dropout > 0 or (config.drop_path > 0 and self.first > 1)

    def of_one(self, preprocess: Preprocess, device: Device) -> Tensor:
        """Compute activations of one black image, [1, ...], for their shape and type."""
        shape = (1, preprocess.channels, *preprocess.image_size)
        black = torch.zeros(shape, dtype=torch.uint8, device=device.torch_device)
        with torch.no_grad(), device.autocast():
            return self.activations(preprocess.normalise(black))


class FrozenTail(nn.Module):
    """Layers that learn, which a training step calls on cached activations."""

    def __init__(self, front: FrozenBackbone) -> None:
        super().__init__()
        self.front = front  # not a module: the learner has its weights

    def train(self, mode: bool = True) -> FrozenTail:
        self.front.model.train(mode)
        return self

    def forward(self, activations: Tensor) -> Tensor:
        """Compute logits [B, classes] of activations."""
        return self.front.rest(activations)


def build_frozen_backbone(model: Model, train: str) -> FrozenBackbone | None:
    """Split the model by `--train`; None if everything learns."""
    learning = parse_train_layers(train)
    return None if learning is None else FrozenBackbone(model, model.config.layers - learning)


MAX_DISK_SHARE = 0.5  # of the free space, unless the user asks for the cache


def resolve_frozen_mode(
    config: FinetuneConfig,
    plan: TrainingPlan,
    start: InitialModel,
    device: Device,
    output: Path,
    held: int,
    cacheable: bool = True,
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """Resolve `--frozen auto`, where layers are frozen: cache their activations or recompute them.

    Args:
        held: validation images.
        cacheable: whether the objective can do without the images.

    Raises ConfigError where it says "cache", and that is impossible.
    """
    asked, front = config.machine.frozen, build_frozen_backbone(start.model, config.recipe.train)
    if front is None:
        if asked == "cache":
            raise ConfigError("--frozen cache: every layer learns; add --train head, or last:2")
        return config, []
    if asked == "compute":
        return config, [ResolvedSetting("frozen", "compute", "asked for")]
    views = count_augmented_views(config, plan)
    need = front.of_one(start.preprocess, device).nbytes * (views * plan.images + held)
    why_not = (
        (None if cacheable else "the objective needs the images themselves")
        or explain_changing_activations(config, plan, front, start.preprocess)
        or explain_disk_shortage(config, need, output)
    )
    if asked == "cache" and why_not is not None:
        raise ConfigError(f"--frozen cache: {why_not}; or say --frozen compute")
    what: FrozenMode = "cache" if why_not is None else "compute"
    seen = "for each image" if views == 1 else f"for {views} views of each image"
    why = (
        why_not
        or f"computed once {seen}: {format_cache_size(need)} on the disk, until the run ends"
    )
    config = replace(config, machine=replace(config.machine, frozen=what))
    return config, [ResolvedSetting("frozen", what, why)]


def count_augmented_views(config: FinetuneConfig, plan: TrainingPlan) -> int:
    """Number of augmented views of an image that the run will use."""
    views = config.augment.views or 1
    if config.recipe.balance == "sample":  # where a repetition takes the next view
        return views
    epochs = -(-plan.steps * plan.batch_size // plan.images)
    return min(views, epochs)


def explain_changing_activations(
    config: FinetuneConfig, plan: TrainingPlan, front: FrozenBackbone, preprocess: Preprocess
) -> str | None:
    """Explain why cached activations would not be used again; None if they would."""
    augment = config.augment
    if get_world().size > 1:
        return "each of several processes sees other images in every epoch; start one"
    if augment.mixes:
        return "MixUp and CutMix blend images differently in every step; leave them out"
    if front.draws:
        return "frozen layers have dropout, too; --dropout 0 --drop-path 0 takes it away"
    if augment.views is None and not augment.is_fixed(preprocess):
        return (
            "crops, flips and colours are new in every epoch; --views 10 fixes ten of each image "
            "and computes them once"
        )
    if plan.steps * plan.batch_size <= count_augmented_views(config, plan) * plan.images:
        return "no view of an image is seen twice; for more passes raise --epochs"
    return None


def explain_disk_shortage(config: FinetuneConfig, need: int, output: Path) -> str | None:
    """Explain why the disk has no room for `need` bytes; None if it has."""
    bound = config.data_settings.cache_size * GIB
    if need > bound:
        return f"it takes {format_cache_size(need)}, more than --cache-size {bound / GIB:.3g} GiB; raise that"
    folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    there = sum(file.stat().st_blocks * 512 for file in RunFolder(output).frozen.rglob("*"))
    free = shutil.disk_usage(folder).free + there
    usable = free if config.machine.frozen == "cache" else MAX_DISK_SHARE * free
    if need > usable:
        return f"it takes {format_cache_size(need)}, and of the disk {format_cache_size(free)} are free; make some room"
    return None


def format_cache_size(count: float) -> str:
    """Format a number of bytes.

    >>> format_cache_size(3_500_000), format_cache_size(7 * 2**30)
    ('3.34 MiB', '7.0 GiB')
    """
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / 2**20:,.2f} MiB"
