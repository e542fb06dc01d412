"""Training as it runs, fed by the loader: how fast, and where the time of a step goes.

The loader's workers and a CPU that computes share the cores, so this is slower than either alone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from patchwords.data.augment import AugmentSettings
from patchwords.data.batch_augment import augment_batch
from patchwords.data.examples import ImageDataset
from patchwords.device import Device
from patchwords.errors import DataError
from patchwords.measure.clock import synchronize_device
from patchwords.measure.input import iterate_endless_batches
from patchwords.measure.subject import BenchmarkWorkload
from patchwords.measure.training import BenchmarkTrainer

MIN_TIMED_STEPS = 3  # steps that count
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
    """A short training, from files to updates."""

    precision: str
    batch: int
    workers: int
    steps: int
    images_per_second: float
    phases: dict[str, float]  # share of the time, by phase; they sum to 1


class PhaseTimer:
    """Sums of seconds; a lap belongs to the phase that it ends. On a GPU it waits at each end."""

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
    subject: BenchmarkWorkload,
    examples: ImageDataset,
    settings: tuple[Device, int, int],
    seconds: float,
) -> EndToEndProfile:
    """`settings` are the device with its precision, the images at a time, and the workers.

    Raises DataError where no image can be read. The first step is left out.
    """
    device, batch, workers = settings
    watch = PhaseTimer(device)
    images = steps = 0
    feed = iterate_endless_batches(
        examples, subject.preprocess, batch, workers, device.type == "cuda"
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
                read.labels.to(place, non_blocking=True) % trainee.classes,
                read.places,
                AugmentSettings(),
                subject.training.seed,
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

    def objective(images: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
        watch.lap("rest")
        result = trainee.objective(images, targets)
        watch.lap("forward")
        return result

    optimizer = trainee.state.optimizer
    before = optimizer.register_step_pre_hook(lambda *_: watch.lap("backward"))
    after = optimizer.register_step_post_hook(lambda *_: watch.lap("optimizer"))
    try:
        yield replace(trainee, objective=objective).step
    finally:
        before.remove()
        after.remove()
