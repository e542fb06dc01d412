"""Timing of repeated runs, and their peak memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from patchwords.device import Device, peak_memory

MIN_TIMED_RUNS = 2  # timed runs, after one that sets up libraries and memory
MAX_TIME_FACTOR = 3  # limit of the expected time of a measurement, relative to its share
CLEAR_REFS_FILE = Path("/proc/self/clear_refs")  # Linux: writing "5" resets the peak memory


@dataclass(frozen=True)
class ThroughputResult:
    """Speed of a model at one batch size, or why it was not measured."""

    precision: str
    batch: int  # batch size
    images_per_second: float | None = None
    share_of_peak: float | None = None  # of the matrix peak in this precision
    memory_bytes: int | None = None  # peak of the process, or of the program on the GPU
    runs: int = 0  # number of timed runs
    skipped: str | None = None


@dataclass(frozen=True)
class TimingSpec:
    """One kind of computation on one device, to be timed."""

    device: Device
    flops: float  # per image
    peak: float  # FLOP/s
    once: Callable[[int], object]  # computes a batch of this size
    needs: Callable[[int], str | None] = lambda batch: (
        None
    )  # why a batch size does not fit, else None


def measure_batch_sizes(
    work: TimingSpec, batches: Sequence[int], seconds: float
) -> list[ThroughputResult]:
    """Measure a row per batch size, rising; `seconds` is the time per row.

    The smallest that fits is always measured; a larger one is skipped if, by the speed of the
    previous one, it would take too long.
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
    """Time as many runs as fit into `seconds`, at least `MIN_TIMED_RUNS`; the median counts."""
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
    """Time repeated runs without the first, in seconds."""
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
    """Wait until the GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device.torch_device)
    elif device.type == "mps":
        torch.mps.synchronize()


def reset_peak_memory(device: Device) -> bool:
    """Reset the counter of `peak_memory`; False if this system cannot."""
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
