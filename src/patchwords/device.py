"""The device of a run, the precision of its products, and its memory."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from patchwords.errors import ConfigError

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda", "mps"]  # mps: the GPU of a Mac
DeviceType = Literal["cpu", "cuda", "mps"]
PrecisionName = Literal["auto", "fp32", "bf16"]
InferencePrecision = Literal["auto", "fp32", "bf16", "int8"]  # of a model that is only asked


@dataclass(frozen=True)
class Device:
    """A device and the precision of its matrix products (weights stay float32)."""

    torch_device: torch.device
    bf16: bool
    int8: bool = False  # those of a trained model's blocks; what else there is, by bf16

    @property
    def type(self) -> DeviceType:
        return cast(DeviceType, self.torch_device.type)

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
        if name in {"cuda", "mps"}:
            raise ConfigError("--precision int8 is for the CPU: leave --device out, or take bf16")
        return Device(torch.device("cpu"), has_fast_bf16(cuda=False), int8=True)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine has no usable GPU; use --device cpu or auto")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            "--device mps: this machine has no GPU by Apple; use --device cpu or auto"
        )
    kind = _find_best_device() if name == "auto" else name
    fast = kind != "mps" and has_fast_bf16(kind == "cuda")
    return Device(torch.device(kind), precision == "bf16" or (precision == "auto" and fast))


def _find_best_device() -> DeviceType:
    """Return the type of the GPU that torch can use, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


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
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    free = _read_number(Path("/proc/meminfo"), "MemAvailable:") * 1024 or _measure_free_memory()
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    used = _read_number(Path("/sys/fs/cgroup/memory.current"))
    cache = _read_number(Path("/sys/fs/cgroup/memory.stat"), "inactive_file")  # can be freed
    return min(free, max(0, limit - used + cache)) if limit else free


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of this process in bytes, on the GPU or in main memory."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())  # now: torch keeps no peak there
    if peak := _read_number(Path("/proc/self/status"), "VmHWM:") * 1024:
        return peak
    try:
        import resource
    except ModuleNotFoundError:
        return _read_windows_memory(process=True)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _measure_free_memory() -> int:
    """Measure the free bytes of main memory where there is no /proc."""
    if not hasattr(os, "sysconf"):
        return _read_windows_memory(process=False)
    if sys.platform == "darwin":
        return parse_vm_stat(subprocess.check_output(["vm_stat"], text=True))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parse_vm_stat(text: str) -> int:
    """Parse what `vm_stat` prints on macOS; -> bytes that are free or can be freed."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"^Pages (?:free|inactive|speculative): +(\d+)", text, re.MULTILINE)
    return int(size[1]) * sum(map(int, pages)) if size else 0


def _read_windows_memory(process: bool) -> int:
    """Read the peak bytes of this process, or the free bytes of main memory, on Windows."""
    ctypes: Any = importlib.import_module("ctypes")
    kernel = ctypes.windll.kernel32
    # PROCESS_MEMORY_COUNTERS (72 bytes) and MEMORYSTATUSEX (64) begin with two numbers of 32 bits, the
    # first of which is the length; numbers of 64 bits follow.
    words = (ctypes.c_uint64 * (9 if process else 8))()
    words[0] = length = ctypes.sizeof(words)
    if process:
        this = ctypes.c_void_p(-1)
        known = kernel.K32GetProcessMemoryInfo(this, ctypes.byref(words), length)
    else:
        known = kernel.GlobalMemoryStatusEx(ctypes.byref(words))
    return int(words[1 if process else 2]) if known else 0


def _read_number(path: Path, after: str = "") -> int:
    """Read the first number of a file, or that after a word; 0 without one ("max")."""
    try:
        words = path.read_text().split()
        word = words[words.index(after) + 1] if after else words[0]
        return int(word)
    except (OSError, ValueError, IndexError):
        return 0  # not Linux, or no limit
