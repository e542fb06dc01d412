"""What segmentation chooses by the data: model, image size, decoder, and the time on a CPU.

Sizes: H W crop that the model takes, h w photo.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from patchwords.data.dataset import TRAIN, DatasetSplits, ImageDataset, evenly_spaced_indices
from patchwords.data.decode import read_image_size
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.errors import ConfigError, DataError, did_you_mean
from patchwords.models.config import ModelConfig, ViTConfig
from patchwords.models.zoo import resolve_model
from patchwords.tasks.segmentation.decoders import DECODERS
from patchwords.training.config import DURATION_FIELDS, FinetuneConfig, flatten_config
from patchwords.training.model_setup import describe_setting_source
from patchwords.training.plan import ResolvedSetting
from patchwords.training.recipes.plain import DEFAULT_CPU_BUDGET
from patchwords.weights.pretrained import Pretrained

PLAIN_MODEL = "CNN-5x1"  # from scratch, where neither model nor weights are named
MAX_CPU_PIXELS = 240 * 320  # of its crop on a CPU
MAX_CELLS = 1_200  # of a ViT's last map: attention grows with their square
CNN_STEP = 8  # pixels: sides of a CNN's crop are multiples of this; it takes any
SIZE_PROBE_IMAGES = 64


def list_candidates(
    config: FinetuneConfig, data: DatasetSplits, device: Device
) -> tuple[list[FinetuneConfig], list[ResolvedSetting]]:
    """Choose what the data decide; -> the settings, a cheaper one for a short budget, and why."""
    choices = []
    flat, alone = flatten_config(config), get_world().size == 1
    if all(flat[name] is None for name in DURATION_FIELDS) and device.type == "cpu" and alone:
        config = replace(config, budget=DEFAULT_CPU_BUDGET)
        why = "time for training and evaluation, the default on a CPU; --budget 1h allows more"
        choices.append(ResolvedSetting("budget", DEFAULT_CPU_BUDGET, why))
    if config.model is not None or config.weights is not None:
        return [config], choices
    config = replace(config, model=PLAIN_MODEL)
    if config.model_settings.image_size is not None:
        return [config], choices
    limit = MAX_CPU_PIXELS * (1 if device.type == "cpu" else 4)
    sizes = [choose_image_size(data.splits[TRAIN], CNN_STEP, n) for n in (limit, limit / 4)]
    return [with_image_size(config, size) for size in dict.fromkeys(sizes)], choices


def with_image_size(config: FinetuneConfig, size: tuple[int, int]) -> FinetuneConfig:
    return replace(config, model_settings=replace(config.model_settings, image_size=size))


def choose_decoder(
    config: FinetuneConfig, origin: Pretrained | None
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """Choose the decoder by the backbone; raises ConfigError for an unknown one."""
    if config.decoder is not None:
        if config.decoder not in DECODERS:
            hint = did_you_mean(config.decoder, DECODERS)
            raise ConfigError(f"--decoder {config.decoder!r} is not a decoder{hint}")
        why = describe_setting_source(config)
        return config, [ResolvedSetting("decoder", config.decoder, why)]
    if isinstance(find_shape(config, origin), ViTConfig):
        decoder, why = "linear", "the default on a ViT: batch norm and a classifier of patches"
    else:
        decoder, why = "mla", "the default on a CNN: its layers of several sizes, joined"
    return replace(config, decoder=decoder), [ResolvedSetting("decoder", decoder, why)]


def find_shape(config: FinetuneConfig, origin: Pretrained | None) -> ModelConfig:
    """Find the config of the backbone: of the weights, or of the model's name."""
    if origin is not None:
        return origin.model.config
    assert config.model is not None
    return resolve_model(config.model).config


def resolve_image_size(
    config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """Choose the size of the crops by the photos, where it is not set."""
    if config.model_settings.image_size is not None:
        return config, []
    shape = find_shape(config, origin)
    step, pixels = CNN_STEP, 4.0 * MAX_CPU_PIXELS
    if isinstance(shape, ViTConfig):
        patch_size = config.model_settings.patch_size or shape.patch_size
        step = patch_size * (shape.trunk.stride if shape.trunk else 1)
        pixels = MAX_CELLS * step**2
    return with_image_size(config, choose_image_size(data.splits[TRAIN], step, pixels)), []


def choose_image_size(examples: ImageDataset, step: int, max_pixels: float) -> tuple[int, int]:
    """Choose (H, W) in the shape of the photos and no larger, in multiples of `step`."""
    height, width = estimate_photo_size(examples)
    scale = min(1.0, math.sqrt(max_pixels / (height * width)))
    rows, columns = (max(1, round(scale * side / step)) * step for side in (height, width))
    return rows, columns


def estimate_photo_size(examples: ImageDataset) -> tuple[float, float]:
    """Estimate the median (h, w), from the headers of a few photos; raises DataError for none."""
    sizes = []
    for index in evenly_spaced_indices(len(examples), SIZE_PROBE_IMAGES):
        try:
            sizes.append(read_image_size(examples.read(index)))
        except (OSError, DataError):
            continue  # counted with the faults
    if not sizes:
        raise DataError("none of the photos can be read; patchwords doctor says why")
    width, height = np.median(np.array(sizes, dtype=np.float64), axis=0)
    return float(height), float(width)
