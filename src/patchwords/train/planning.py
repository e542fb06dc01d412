"""What a training takes, by arithmetic: compute, memory, time, data. Nothing is run.

The paper's own unit of compute is the exaFLOP of Table 6: 6 x MACs x images, that is two FLOPs to
a multiplication with its addition, and a backward pass of twice the forward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from patchwords.model.cost import Config, macs, parameters, training_flops
from patchwords.train.footprint import USABLE, Footprint, Layout, Update, footprint
from patchwords.train.hardware import Hardware, peak_flops

COMPUTED_AGAIN = 8 / 6  # FLOPs where activations are checkpointed: one more forward pass
GIB = 2**30
# JPEGs that one CPU core reads, decodes, crops and resizes in a second: benchmarks/input.py gives
# 746 for photos of 500 pixels and 68 KB, 1,255 for 320 pixels and 31 KB.
DECODED = (500, 1000)
MOST_DEVICES = 4096  # that are tried when looking for what would fit


@dataclass(frozen=True)
class Training:
    """What is to be done."""

    config: Config
    images: int  # in the data set
    epochs: float
    batch: int  # images an update, over all devices
    update: Update

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
        """Of one checkpoint on disk."""
        return parameters(self.config) * self.update.checkpoint_bytes

    def flops(self, computed_again: bool = False) -> float:
        """Of the whole training; with what checkpointed activations add, if asked for."""
        flops = training_flops(macs(self.config), self.seen)
        return flops * COMPUTED_AGAIN if computed_again else flops


@dataclass(frozen=True)
class Machine:
    """What it is to be done on."""

    hardware: Hardware | None  # None: only its measured speed is known
    layout: Layout
    utilisation: float  # share of the peak that is reached
    measured: float | None = None  # images a second on one device, in place of an assumption


@dataclass(frozen=True)
class Fit:
    """One layout in the memory of one device."""

    layout: Layout
    footprint: Footprint
    most_images: int | None  # at a time; None: the device's memory is not known
    micro_batch: int  # images at a time
    parts: int  # that a device's share of the batch is cut into (gradient accumulation)
    total_bytes: int
    fits: bool | None


@dataclass(frozen=True)
class Time:
    """How fast, and how long."""

    images_per_second: float  # all devices together
    utilisation: float | None  # None: measured on hardware whose peak is not known
    seconds: float
    device_days: float


def fit(training: Training, machine: Machine, micro_batch: int | None = None) -> Fit:
    """How a training sits in memory, with the most images at a time unless they are given."""
    layout = machine.layout
    held = footprint(training.config, layout, training.update)
    share = -(-training.batch // layout.devices)
    memory = machine.hardware.memory * GIB if machine.hardware else None
    most = None if memory is None else held.most_images(memory)
    at_once = min(micro_batch or most or 1, share)
    parts = -(-share // at_once)
    at_once = micro_batch or -(-share // parts)  # equal parts
    total = held.total(at_once)
    fits = None if memory is None else total <= USABLE * memory
    return Fit(layout, held, most, at_once, parts, total, fits)


def layouts(layout: Layout) -> list[Layout]:
    """The ways to lay it out on as many devices, the simplest first."""
    return [
        Layout(layout.devices, parallel, checkpointing)
        for parallel in (("ddp", "fsdp") if layout.devices > 1 else ("ddp",))
        for checkpointing in (False, True)
    ]


def what_would_fit(training: Training, machine: Machine, micro_batch: int | None) -> Layout | None:
    """The simplest layout that fits: on these devices, else on twice as many, and so on."""
    layout = machine.layout
    while layout.devices <= min(MOST_DEVICES, training.batch):
        for other in layouts(layout):
            if fit(training, replace(machine, layout=other), micro_batch).fits:
                return other
        layout = replace(layout, devices=2 * layout.devices)
    return None


def estimate_time(training: Training, machine: Machine) -> Time:
    """Seconds = FLOPs / (devices x peak x utilisation), or images / (devices x measured speed).

    Raises ConfigError where the hardware has no peak in this precision.
    """
    devices = machine.layout.devices
    flops = training.flops(machine.layout.checkpointing)
    peak = peak_flops(machine.hardware, training.update.precision) if machine.hardware else None
    utilisation: float | None = machine.utilisation
    if machine.measured:
        seconds = training.seen / (devices * machine.measured)
        utilisation = flops / (seconds * devices * peak) if peak else None
    elif peak:
        seconds = flops / (devices * peak * machine.utilisation)
    else:
        raise ValueError("neither hardware nor a measured speed")
    return Time(training.seen / seconds, utilisation, seconds, devices * seconds / 86_400)


def decoding_cores(images_per_second: float) -> tuple[int, int]:
    """CPU cores that decode so many photos a second: at best, and to be on the safe side."""
    slow, fast = DECODED
    return math.ceil(images_per_second / fast), math.ceil(images_per_second / slow)
