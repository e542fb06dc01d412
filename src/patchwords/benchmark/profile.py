"""Speed of training fed by the loader, and the time of a step by phase and operation.

The loader's workers and a CPU that computes share the cores, so this is slower than either alone.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from patchwords.benchmark.clock import synchronize_device
from patchwords.benchmark.loader import iterate_endless_batches
from patchwords.benchmark.throughput import BenchmarkTrainer, make_noise_images
from patchwords.benchmark.workload import BenchmarkWorkload
from patchwords.data.augment import AugmentSettings
from patchwords.data.batch_augment import augment_batch
from patchwords.data.dataset import ImageDataset
from patchwords.device import Device
from patchwords.errors import DataError

MIN_TIMED_STEPS = 3  # timed steps
STEP_PHASES = (
    "waiting for data",
    "copy and augmentation",
    "forward",
    "backward",
    "optimizer",
    "rest",
)


@dataclass(frozen=True)
class EndToEndProfile:
    """Profile of a short training, from files to updates."""

    precision: str
    batch: int
    workers: int
    steps: int
    images_per_second: float
    phases: dict[str, float]  # share of the time by phase; they sum to 1


class PhaseTimer:
    """Seconds per phase; `lap` ends a phase. On a GPU it waits at each end."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last = time.perf_counter()

    def lap(self, phase: str) -> None:
        synchronize_device(self.device)
        now = time.perf_counter()
        self.seconds[phase] += now - self.last
        self.last = now

    def clear(self) -> None:
        self.seconds.clear()


def profile_end_to_end(
    trainee: BenchmarkTrainer,
    workload: BenchmarkWorkload,
    examples: ImageDataset,
    settings: tuple[Device, int, int],
    seconds: float,
) -> EndToEndProfile:
    """Profile a short training; `settings` are device, batch size and workers.

    Raises DataError if no image can be read. The first step is left out.
    """
    device, batch, workers = settings
    watch = PhaseTimer(device)
    images = steps = 0
    feed = iterate_endless_batches(
        examples, workload.preprocess, batch, workers, device.type == "cuda"
    )
    with instrument_train_step(trainee.on(device), watch) as step, closing(feed) as batches:  # type: ignore[type-var]
        end = float("inf")
        while steps < MIN_TIMED_STEPS or time.perf_counter() < end:
            read = next(batches)
            if not len(read.indices):
                raise DataError(f"no image can be read; the first one: {read.bad[0][1]}")
            watch.lap(STEP_PHASES[0])
            place = device.torch_device
            pixels, labels = augment_batch(
                read.images.to(place, non_blocking=True),
                # -1 where the data have none: of some class, then
                read.targets.to(place, non_blocking=True) % trainee.classes,
                read.places,
                AugmentSettings(),
                workload.training.seed,
                trainee.classes,
                steps,
            )
            watch.lap(STEP_PHASES[1])
            step(pixels, labels)
            watch.lap("rest")
            if end == float("inf"):
                watch.clear()
                end = time.perf_counter() + seconds
                continue
            images, steps = images + len(pixels), steps + 1
    total = sum(watch.seconds.values())
    phases = {phase: watch.seconds[phase] / total for phase in STEP_PHASES}
    return EndToEndProfile(device.precision, batch, workers, steps, images / total, phases)


@contextmanager
def instrument_train_step(
    trainee: BenchmarkTrainer, watch: PhaseTimer
) -> Iterator[Callable[[Tensor, Tensor], None]]:
    """The trainee's step, whose parts are timed: clipping belongs to the backward pass."""

    def loss(*inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        watch.lap("rest")
        result = trainee.objective.loss(*inputs)
        watch.lap("forward")
        return result

    objective = copy(trainee.objective)
    vars(objective)["loss"] = loss
    optimizer = trainee.state.optimizer
    update = optimizer.step

    def timed_update() -> None:
        watch.lap("backward")
        update()
        watch.lap("optimizer")

    # Not by torch's hooks: those of a subclass run twice once its base class has been in use.
    vars(optimizer)["step"] = timed_update
    try:
        yield replace(trainee, objective=objective).step
    finally:
        del vars(optimizer)["step"]


# The time of a training step by kind of operation, from torch's profiler.


# Kind -> the operators of it; the first that matches. Softmax is attention's: that of the loss is
# a log-softmax, and small. An operator's time is its own, without those that it calls.
OPERATION_PATTERNS = {
    "attention": r"bmm|baddbmm|softmax|attention",
    "linear": r"^(aten::)?(mm|addmm|linear|matmul)|linear",
    "convolution": r"conv",
    "norm": r"layer_norm|group_norm",
    "gelu": r"gelu",
    "optimizer and clipping": r"_fused_(adam|sgd)|_foreach_|vector_norm|^Optimizer\.",
    "copies and casts": r"copy|clone|contiguous|fill_|zero_|^(aten::)?cat$",
}
OTHER_OPERATIONS = "rest"
LOSS_OPERATION = "_log_softmax"
NUM_PROFILED_STEPS = 2  # profiled steps, after one warm-up step


def profile_operations(
    trainee: BenchmarkTrainer, workload: BenchmarkWorkload, device: Device, batch: int
) -> dict[str, float]:
    """Return the share of a step's time by kind, largest first; they sum to 1.

    On a GPU it is the time of its kernels, not of the CPU that launches them.
    """
    place, cuda = device.torch_device, device.type == "cuda"
    trainee = trainee.on(device)
    images = make_noise_images(batch, workload).to(place)
    labels = torch.arange(batch, device=place) % trainee.classes
    trainee.step(images, labels)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler logs to stderr
    with profile(activities=activities) as events:
        for _ in range(NUM_PROFILED_STEPS):
            trainee.step(images, labels)
    rows = [
        (event.key, event.self_device_time_total if cuda else event.self_cpu_time_total)
        for event in events.key_averages()
        if event.device_type == DeviceType.CPU  # a kernel's time is counted at its operator as well
    ]
    return compute_time_shares(rows)


def compute_time_shares(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    """(operator, seconds) -> share of the seconds by kind, largest first.

    >>> compute_time_shares([("aten::addmm", 3.0), ("aten::mul", 1.0)])
    {'linear': 0.75, 'rest': 0.25}
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for name, seconds in rows:
        sums[classify_operation(name)] += seconds
    total = sum(sums.values()) or 1.0
    largest_first = sorted(sums.items(), key=lambda item: -item[1])
    return {kind: time / total for kind, time in largest_first if time > 0}


def classify_operation(operator: str) -> str:
    """Classify an operator by its name in torch.

    >>> classify_operation("aten::native_layer_norm_backward"), classify_operation("aten::add_")
    ('norm', 'rest')
    """
    if LOSS_OPERATION in operator or operator.startswith("autograd::"):
        return OTHER_OPERATIONS
    for kind, pattern in OPERATION_PATTERNS.items():
        if re.search(pattern, operator):
            return kind
    return OTHER_OPERATIONS
