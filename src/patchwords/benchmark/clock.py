"""How long something takes here and now, and what it holds meanwhile."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from patchwords.device import Device, peak_memory

MIN_TIMED_RUNS = 2  # runs that count; the one before them sets up libraries and memory
MAX_TIME_FACTOR = 3  # times its share of the time that a measurement may be expected to take
CLEAR_REFS_FILE = Path("/proc/self/clear_refs")  # Linux: "5" forgets the most memory that there was


@dataclass(frozen=True)
class ThroughputResult:
    """How fast a model took images at one setting, or why that was not tried."""

    precision: str
    batch: int  # images at a time
    images_per_second: float | None = None
    share_of_peak: float | None = None  # of the matrix peak in this precision
    memory_bytes: int | None = None  # the most that the process held, or the program on the GPU
    runs: int = 0  # of which the median counts
    skipped: str | None = None


@dataclass(frozen=True)
class TimingSpec:
    """What is to be measured: batches of one kind of computation on one device."""

    device: Device
    flops: float  # of one image
    peak: float  # FLOP/s
    once: Callable[[int], object]  # computes a batch of so many images
    needs: Callable[[int], str | None] = lambda batch: None  # why so many do not fit, if so


def measure_batch_sizes(
    work: TimingSpec, batches: Sequence[int], seconds: float
) -> list[ThroughputResult]:
    """One row for each number of images at a time, rising; `seconds` is the time of a row.

    The smallest is always measured unless it does not fit; a larger one is left out where, by the
    speed of the one before, it would take longer than there is patience for.
    """
    rows: list[ThroughputResult] = []
    speed: float | None = None
    for batch in sorted(batches):
        why = work.needs(batch)
        if why is None and speed is not None:
            expected = (MIN_TIMED_RUNS + 1) * batch / speed
            if expected > MAX_TIME_FACTOR * seconds:
                why = f"would take {expected:.1f} s; raise --seconds"
        if why is not None:
            rows.append(ThroughputResult(work.device.precision, batch, skipped=why))
            continue
        row = measure_batch_size(work, batch, seconds)
        speed = row.images_per_second
        rows.append(row)
    return rows


def measure_batch_size(work: TimingSpec, batch: int, seconds: float) -> ThroughputResult:
    """The median of as many runs as fit into `seconds`, and of `MIN_TIMED_RUNS` in any case."""
    known = reset_peak_memory(work.device)
    times = time_repeated_runs(lambda: work.once(batch), work.device, seconds)
    speed = batch / statistics.median(times)
    return ThroughputResult(
        work.device.precision,
        batch,
        images_per_second=speed,
        share_of_peak=speed * work.flops / work.peak,
        memory_bytes=peak_memory(work.device.torch_device) if known else None,
        runs=len(times),
    )


def time_repeated_runs(action: Callable[[], object], device: Device, seconds: float) -> list[float]:
    """Seconds of each run, the first left out."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) <= MIN_TIMED_RUNS or time.perf_counter() < end:
        synchronize_device(device)
        start = time.perf_counter()
        action()
        synchronize_device(device)
        times.append(time.perf_counter() - start)
    return times[1:]


def synchronize_device(device: Device) -> None:
    """Wait until the GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device.torch_device)


def reset_peak_memory(device: Device) -> bool:
    """Let `peak_memory` count from now on; False where this system cannot."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device.torch_device)
        return True
    try:
        CLEAR_REFS_FILE.write_text("5")
    except OSError:
        return False  # not Linux, or not allowed
    return True
