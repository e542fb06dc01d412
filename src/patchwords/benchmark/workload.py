"""The benchmarked model: size, training settings, precisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from patchwords.data.preprocess import Preprocess
from patchwords.device import Device, DeviceName, PrecisionName, choose_device, free_memory
from patchwords.errors import ConfigError
from patchwords.files import GIB
from patchwords.models.build import Model, ModelConfig, get_model_family
from patchwords.models.zoo import create_model, resolve_model
from patchwords.planning.memory import (
    FREE_MEMORY_SHARE,
    USABLE_MEMORY_SHARE,
    MemoryFootprint,
    OptimizerSpec,
    ParallelLayout,
    estimate_memory_footprint,
)
from patchwords.training.config import FinetuneConfig, unflatten_config
from patchwords.training.plan import require_setting
from patchwords.training.recipes import fill_recipe_settings

InitKind = Literal["weights", "scratch"]
DEFAULT_NUM_IMAGES = 1_281_167  # default: ImageNet's; it decides the recipe's batch size
TRAINING_BATCH_SIZES = {
    "cpu": (2, 8, 32),
    "cuda": (32, 128, 512),
    "mps": (8, 32, 128),
}  # batch sizes of training
INFERENCE_BATCH_SIZES = {"cpu": (1, 8, 32), "cuda": (1, 8, 32, 256), "mps": (1, 8, 32)}  # inference


@dataclass(frozen=True)
class BenchmarkWorkload:
    """A model, its training settings, and the precisions to compare."""

    name: str  # canonical
    shape: ModelConfig
    training: FinetuneConfig  # with its recipe filled in
    devices: tuple[Device, ...]  # one device; the precision that `auto` chooses comes first
    inference_batches: tuple[int, ...]
    training_batches: tuple[int, ...]

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess(image_size=self.shape.image_size)

    @property
    def checkpointing(self) -> bool:
        return self.training.machine.checkpoint_activations

    def create(self) -> Model:
        """Create a model with initial weights: speed does not depend on training."""
        settings = {
            name: value
            for name, value in vars(self.training.model_settings).items()
            if value is not None
        }
        return create_model(self.name, **settings)

    def needs(self, batch: int, precision: str) -> int:
        """Estimate the bytes of training on a batch."""
        return estimate_workload_memory(self.shape, self.training, precision).total(batch)


def build_workload(
    model: str,
    image_size: tuple[int, ...] | None,
    batches: Sequence[int] | None,
    start: InitKind,
    images: int | None,
    where: tuple[DeviceName, PrecisionName],
) -> BenchmarkWorkload:
    """Resolve a workload; raise ConfigError for what does not exist or fit.

    Activations are checkpointed if the smallest batch does not fit without.
    """
    devices = choose_device_precisions(*where)
    found = resolve_model(model)
    settings: dict[str, object] = {"model": found.name}
    if image_size is not None:
        settings["image_size"] = image_size * 2 if len(image_size) == 1 else image_size
    shape = found.config.with_settings(
        **({"image_size": settings["image_size"]} if image_size is not None else {})
    )
    settings["image_size"] = shape.image_size
    training, _ = fill_recipe_settings(
        unflatten_config(FinetuneConfig(), settings),
        images=images or DEFAULT_NUM_IMAGES,
        from_weights=start == "weights",
        model=found.name,
        family=get_model_family(shape),
    )
    workload = BenchmarkWorkload(
        found.name,
        shape,
        training,
        devices,
        tuple(sorted(set(batches or INFERENCE_BATCH_SIZES[devices[0].type]))),
        tuple(sorted(set(batches or TRAINING_BATCH_SIZES[devices[0].type]))),
    )
    return enable_checkpointing_if_needed(workload, get_usable_memory(devices[0]))


def choose_device_precisions(name: DeviceName, precision: PrecisionName) -> tuple[Device, ...]:
    """Choose the device's precisions; `auto` compares bf16 and fp32 where bf16 is fast."""
    first = choose_device(name, precision)
    if precision == "auto" and first.bf16:
        return first, replace(first, bf16=False)
    return (first,)


def enable_checkpointing_if_needed(workload: BenchmarkWorkload, memory: int) -> BenchmarkWorkload:
    """Enable activation checkpointing if needed; raise ConfigError if that is not enough."""
    smallest = min(workload.training_batches)
    precision = workload.devices[0].precision
    if workload.needs(smallest, precision) <= memory:
        return workload
    machine = replace(workload.training.machine, checkpoint_activations=True)
    spared = replace(workload, training=replace(workload.training, machine=machine))
    needed = spared.needs(smallest, precision)
    if needed > memory:
        raise ConfigError(
            f"{workload.name}: training on {smallest} images at a time takes about "
            f"{needed / GIB:.1f} GiB, of {memory / GIB:.1f} GiB that may be taken here; try a "
            "smaller model, --image-size or --batch-size"
        )
    return spared


def get_usable_memory(device: Device) -> int:
    """Return the bytes that training may use, as in planning/memory.py."""
    share = USABLE_MEMORY_SHARE if device.type == "cuda" else FREE_MEMORY_SHARE
    return int(share * free_memory(device.torch_device))


def estimate_workload_memory(
    shape: ModelConfig, training: FinetuneConfig, precision: str
) -> MemoryFootprint:
    """Estimate the memory of training on one device."""
    layout = ParallelLayout(1, "ddp", training.machine.checkpoint_activations)
    average = training.recipe.ema is not None
    exact: Literal["bf16", "fp32"] = "bf16" if precision == "bf16" else "fp32"
    return estimate_memory_footprint(
        shape, layout, OptimizerSpec(require_setting(training.recipe.optimizer), average, exact)
    )
