"""Estimates of a training by arithmetic: compute, memory, time, data. Nothing is run.

The paper's own unit of compute is the exaFLOP of Table 6: 6 x MACs x images, that is two FLOPs to
a multiplication with its addition, and a backward pass of twice the forward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from patchwords.files import GIB
from patchwords.models.config import ModelConfig
from patchwords.models.cost import compute_training_flops, count_macs, count_parameters
from patchwords.planning.hardware import Hardware, get_peak_flops
from patchwords.planning.memory import (
    USABLE_MEMORY_SHARE,
    MemoryFootprint,
    OptimizerSpec,
    ParallelLayout,
    estimate_memory_footprint,
)

RECOMPUTE_FACTOR = 8 / 6  # FLOPs where activations are checkpointed: one more forward pass
# JPEGs that one CPU core reads, decodes, crops and resizes in a second: benchmarks/input.py gives
# 746 for photos of 500 pixels and 68 KB, 1,255 for 320 pixels and 31 KB.
JPEGS_PER_CORE_SECOND = (500, 1000)
MAX_DEVICES = 4096  # that are tried when looking for what would fit


@dataclass(frozen=True)
class TrainingWorkload:
    """A training: model, data and length."""

    config: ModelConfig
    images: int  # in the data set
    epochs: float
    batch: int  # images an update, over all devices
    update: OptimizerSpec

    @property
    def seen(self) -> int:
        """Images that go through the model, repetitions counted."""
        return round(self.images * self.epochs)

    @property
    def steps(self) -> int:
        """Updates of the weights."""
        return -(-self.seen // self.batch)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint on disk."""
        return count_parameters(self.config) * self.update.checkpoint_bytes

    def flops(self, computed_again: bool = False) -> float:
        """FLOPs of the training, optionally with what checkpointed activations add."""
        flops = compute_training_flops(count_macs(self.config), self.seen)
        return flops * RECOMPUTE_FACTOR if computed_again else flops


@dataclass(frozen=True)
class HardwareSetup:
    """Hardware, its layout and its speed."""

    hardware: Hardware | None  # None: only its measured speed is known
    layout: ParallelLayout
    utilisation: float  # share of the peak that is reached
    measured: float | None = None  # images a second on one device, in place of an assumption


@dataclass(frozen=True)
class MemoryFit:
    """One layout in the memory of one device."""

    layout: ParallelLayout
    footprint: MemoryFootprint
    most_images: int | None  # at a time; None: the device's memory is not known
    micro_batch: int  # images at a time
    parts: int  # that a device's share of the batch is cut into (gradient accumulation)
    total_bytes: int
    fits: bool | None


@dataclass(frozen=True)
class TimeEstimate:
    """Speed and duration of a training."""

    images_per_second: float  # all devices together
    utilisation: float | None  # None: measured on hardware whose peak is not known
    seconds: float
    device_days: float


def fit_in_memory(
    training: TrainingWorkload, machine: HardwareSetup, micro_batch: int | None = None
) -> MemoryFit:
    """Fit a training in memory, with the most images at a time unless they are given."""
    layout = machine.layout
    held = estimate_memory_footprint(training.config, layout, training.update)
    share = -(-training.batch // layout.devices)
    memory = machine.hardware.memory * GIB if machine.hardware else None
    most = None if memory is None else held.most_images(memory)
    at_once = min(micro_batch or most or 1, share)
    parts = -(-share // at_once)
    at_once = micro_batch or -(-share // parts)  # equal parts
    total = held.total(at_once)
    fits = None if memory is None else total <= USABLE_MEMORY_SHARE * memory
    return MemoryFit(layout, held, most, at_once, parts, total, fits)


def list_layouts(layout: ParallelLayout) -> list[ParallelLayout]:
    """List the layouts on as many devices, the simplest first."""
    return [
        ParallelLayout(layout.devices, parallel, checkpointing)
        for parallel in (("ddp", "fsdp") if layout.devices > 1 else ("ddp",))
        for checkpointing in (False, True)
    ]


def find_fitting_layout(
    training: TrainingWorkload, machine: HardwareSetup, micro_batch: int | None
) -> ParallelLayout | None:
    """Find the simplest layout that fits: on these devices, else on twice as many, and so on."""
    layout = machine.layout
    while layout.devices <= min(MAX_DEVICES, training.batch):
        for other in list_layouts(layout):
            if fit_in_memory(training, replace(machine, layout=other), micro_batch).fits:
                return other
        layout = replace(layout, devices=2 * layout.devices)
    return None


def estimate_time(training: TrainingWorkload, machine: HardwareSetup) -> TimeEstimate:
    """Seconds = FLOPs / (devices x peak x utilisation), or images / (devices x measured speed).

    Raises ConfigError where the hardware has no peak in this precision.
    """
    devices = machine.layout.devices
    flops = training.flops(machine.layout.checkpointing)
    peak = get_peak_flops(machine.hardware, training.update.precision) if machine.hardware else None
    utilisation: float | None = machine.utilisation
    if machine.measured:
        seconds = training.seen / (devices * machine.measured)
        utilisation = flops / (seconds * devices * peak) if peak else None
    elif peak:
        seconds = flops / (devices * peak * machine.utilisation)
    else:
        raise ValueError("neither hardware nor a measured speed")
    return TimeEstimate(training.seen / seconds, utilisation, seconds, devices * seconds / 86_400)


def estimate_decoding_cores(images_per_second: float) -> tuple[int, int]:
    """CPU cores that decode N photos a second: at best, and with a margin."""
    slow, fast = JPEGS_PER_CORE_SECOND
    return math.ceil(images_per_second / fast), math.ceil(images_per_second / slow)
