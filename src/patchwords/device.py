"""The device of a run, the precision of its products, and its memory."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from patchwords.errors import ConfigError

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["auto", "fp32", "bf16"]
InferencePrecision = Literal["auto", "fp32", "bf16", "int8"]  # of a model that is only asked


@dataclass(frozen=True)
class Device:
    """A device and the precision of its matrix products (weights stay float32)."""

    torch_device: torch.device
    bf16: bool
    int8: bool = False  # those of a trained model's blocks; what else there is, by bf16

    @property
    def type(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.torch_device.type == "cuda" else "cpu"

    @property
    def precision(self) -> Literal["fp32", "bf16", "int8"]:
        if self.int8:
            return "int8"
        return "bf16" if self.bf16 else "fp32"

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for bfloat16 matrix products, or one without effect."""
        import torch

        if not self.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16)

    def describe(self) -> dict[str, object]:
        """Describe the device for the record of a run."""
        import torch

        cuda = self.type == "cuda"
        return {
            "type": self.type,
            "name": torch.cuda.get_device_name(self.torch_device) if cuda else cpu_name(),
            "threads": torch.get_num_threads(),
            "precision": self.precision,
        }


def choose_device(name: DeviceName = "auto", precision: InferencePrecision = "auto") -> Device:
    """Choose the named device, or the best one; raises ConfigError if it is missing."""
    import torch

    if precision == "int8":
        if name == "cuda":
            raise ConfigError("--precision int8 is for the CPU: leave --device out, or take bf16")
        return Device(torch.device("cpu"), has_fast_bf16(cuda=False), int8=True)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine has no usable GPU; use --device cpu or auto")
    cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if cuda else "cpu")
    return Device(device, precision == "bf16" or (precision == "auto" and has_fast_bf16(cuda)))


def has_fast_bf16(cuda: bool) -> bool:
    """Return whether the hardware itself computes bfloat16 products."""
    import torch

    if cuda:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def cpu_name() -> str:
    """Return the processor's name as its maker writes it."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def free_memory(device: torch.device) -> int:
    """Return the free bytes of the GPU, or of main memory within the container's limit."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _read_number(Path("/proc/meminfo"), "MemAvailable:") * 1024 or pages
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    used = _read_number(Path("/sys/fs/cgroup/memory.current"))
    cache = _read_number(Path("/sys/fs/cgroup/memory.stat"), "inactive_file")  # can be freed
    return min(free, max(0, limit - used + cache)) if limit else free


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of this process in bytes, on the GPU or in main memory."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = _read_number(Path("/proc/self/status"), "VmHWM:") * 1024
    if peak or sys.platform == "win32":  # Windows: not known
        return peak
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read_number(path: Path, after: str = "") -> int:
    """Read the first number of a file, or that after a word; 0 without one ("max")."""
    try:
        words = path.read_text().split()
        word = words[words.index(after) + 1] if after else words[0]
        return int(word)
    except (OSError, ValueError, IndexError):
        return 0  # not Linux, or no limit
