"""Limits of the machine: matrix products and memory bandwidth."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from patchwords.benchmark.clock import synchronize_device
from patchwords.device import Device, free_memory
from patchwords.planning.matmul_peak import measure_matmul_peak
from patchwords.processes import count_usable_cores

COPY_BYTES = {"cpu": 2**28, "cuda": 2**30, "mps": 2**28}  # bytes: far more than any cache
COPY_SECONDS = 0.2  # of measurement


@dataclass(frozen=True)
class MachineProfile:
    """The device and its measured limits."""

    device: str  # cpu, cuda or mps
    name: str
    cores: int  # usable by this process
    threads: int  # of torch
    free_bytes: int  # of the device's memory, before the benchmark
    load: float | None  # load average of the previous minute; None: unknown
    peak_flops_per_second: dict[str, float]  # by precision
    copied_bytes_per_second: float  # read and written


def measure_machine(devices: Sequence[Device]) -> MachineProfile:
    """Measure the limits; `devices` are one device in the requested precisions."""
    first = devices[0]
    about = first.describe()
    return MachineProfile(
        device=first.type,
        name=str(about["name"]),
        cores=count_usable_cores(),
        threads=torch.get_num_threads(),
        free_bytes=free_memory(first.torch_device),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        peak_flops_per_second={device.precision: measure_matmul_peak(device) for device in devices},
        copied_bytes_per_second=measure_copy_bandwidth(first),
    )


def measure_copy_bandwidth(device: Device) -> float:
    """Measure bytes read and written per second by the fastest copy."""
    size = COPY_BYTES[device.type]
    source = torch.zeros(size, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    target.copy_(source)  # the first copy maps the pages
    best, end = float("inf"), time.perf_counter() + COPY_SECONDS
    while best == float("inf") or time.perf_counter() < end:
        synchronize_device(device)
        start = time.perf_counter()
        target.copy_(source)
        synchronize_device(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size / best
