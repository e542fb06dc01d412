"""Measure the fastest matrix product of this device, against which utilisation is counted.

Datasheets promise what no program reaches, and for a CPU they say nothing. Utilisation is meant
against what torch's own matrix product reaches on this device, in the precision of the training.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from patchwords.device import Device
from patchwords.models.build import Model
from patchwords.models.cost import compute_training_flops, count_forward_macs
from patchwords.models.inference.packed import PackedLinear, supports_packed_linear

# Sides of the square matrices that are tried: which one is fastest depends on caches and cores.
MATRIX_SIDES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192), "mps": (2048, 4096)}
SECONDS_PER_SIDE = 0.1


def seconds_per_image_at_peak(model: Model, device: Device) -> float | None:
    """What training on one image would take if the device did nothing but multiply at its peak.

    Over the seconds that it does take, this is the utilisation of model FLOPs (PaLM, arXiv
    2204.02311, App. B): what is computed again to save memory is not counted. None where weights
    below the head are frozen: the backward pass is then shorter than `compute_training_flops` says.
    """
    for name, parameter in model.named_parameters():
        if not (parameter.requires_grad or name.startswith("head.")):
            return None
    return compute_training_flops(count_forward_macs(model.config), images=1) / measure_matmul_peak(
        device
    )


def measure_matmul_peak(device: Device) -> float:
    """FLOP/s of the fastest product among a few; measured once in a process, in a second.

    One product at a time, the best of several: whatever else the machine does only makes it slower.
    """
    return _measure_matmul_peak(device.type, device.precision, torch.get_num_threads())


@functools.cache
def _measure_matmul_peak(place: str, precision: str, threads: int) -> float:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return max(
        measure_fastest_matmul(side, torch.device(place), dtype) for side in MATRIX_SIDES[place]
    )


@torch.no_grad()
def measure_fastest_matmul(side: int, device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the fastest product of two matrices of side x side; one multiplication is 2."""
    # Noise: a GPU is faster at equal numbers. A generator of its own leaves other draws alone.
    noise = torch.Generator(device).manual_seed(0)
    a, b = torch.randn(2, side, side, generator=noise, device=device).to(dtype).unbind()
    best = min(_best_seconds(product, device) for product in _matmul_variants(a, b))
    return 2 * side**3 / best


def _matmul_variants(a: Tensor, b: Tensor) -> Iterator[Callable[[], Tensor]]:
    """Ways to multiply them: on a CPU torch's usual library may be the slower one."""
    yield lambda: torch.mm(a, b)
    if a.device.type == "cpu" and supports_packed_linear():
        packed = PackedLinear(b.T.contiguous(), torch.zeros(len(b)), b.dtype)
        yield lambda: packed(a)


def _best_seconds(product: Callable[[], Tensor], device: torch.device) -> float:
    """The best of several."""
    product()  # the first sets up libraries
    best, end = float("inf"), time.perf_counter() + SECONDS_PER_SIDE
    while time.perf_counter() < end or best == float("inf"):
        _synchronize(device)
        clock = time.perf_counter()
        product()
        _synchronize(device)
        best = min(best, time.perf_counter() - clock)
    return best


def _synchronize(device: torch.device) -> None:
    """Until the GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
