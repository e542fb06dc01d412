"""Accelerators by name: memory and peak speed, as their makers state them.

Peaks are for dense matrices. Datasheets often print the number for 2:4 sparsity, which is twice as
large and which no training reaches; such numbers are halved here. bf16 is with sums in float32, as
training needs them: consumer cards do that at half the speed of sums in float16. fp32 is without
TF32, since torch multiplies float32 matrices in full precision unless told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from patchwords.errors import ConfigError, did_you_mean

Precision = Literal["bf16", "fp32"]
PrecisionChoice = Literal["auto", "bf16", "fp32"]


@dataclass(frozen=True)
class Hardware:
    """A device. Makers write GB for the memory of a device and mean GiB."""

    name: str
    memory: int  # GiB
    bf16: float | None  # TFLOP/s; None: the device has no bf16
    fp32: float | None  # TFLOP/s; None: not known from the maker
    source: str


_NVIDIA = "https://www.nvidia.com/"
_IMAGES = "https://images.nvidia.com/"
_SHEETS = f"{_NVIDIA}content/dam/en-zz/Solutions/Data-Center/"
_H100 = f"NVIDIA H100 datasheet, halved for sparsity: {_NVIDIA}en-us/data-center/h100/"
_A100 = (
    f"NVIDIA A100 datasheet: {_SHEETS}a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_V100 = (
    "NVIDIA V100 datasheet, SXM2: "
    f"{_IMAGES}content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)

HARDWARE: dict[str, Hardware] = {
    "b200": Hardware(
        "NVIDIA B200",
        180,
        2250,
        None,
        f"NVIDIA HGX B200, an eighth, halved for sparsity: {_NVIDIA}en-us/data-center/hgx/",
    ),
    "h200": Hardware(
        "NVIDIA H200",
        141,
        989.5,
        67,
        f"NVIDIA H200 datasheet, halved for sparsity: {_NVIDIA}en-us/data-center/h200/",
    ),
    "h100": Hardware("NVIDIA H100 SXM", 80, 989.5, 67, _H100),
    "h100-pcie": Hardware("NVIDIA H100 PCIe", 80, 756.5, 51, _H100),
    "a100-80gb": Hardware("NVIDIA A100 80 GB", 80, 312, 19.5, _A100),
    "a100-40gb": Hardware("NVIDIA A100 40 GB", 40, 312, 19.5, _A100),
    "l40s": Hardware(
        "NVIDIA L40S",
        48,
        362.05,
        91.6,
        f"NVIDIA L40S datasheet: {_NVIDIA}en-us/data-center/l40s/",
    ),
    "l4": Hardware(
        "NVIDIA L4",
        24,
        121,
        30.3,
        f"NVIDIA L4 datasheet, halved for sparsity: {_NVIDIA}en-us/data-center/l4/",
    ),
    "a10": Hardware(
        "NVIDIA A10",
        24,
        125,
        31.2,
        f"NVIDIA A10 datasheet: {_SHEETS}a10/pdf/a10-datasheet.pdf",
    ),
    "v100-32gb": Hardware("NVIDIA V100 32 GB", 32, None, 15.7, _V100),
    "v100-16gb": Hardware("NVIDIA V100 16 GB", 16, None, 15.7, _V100),
    "t4": Hardware(
        "NVIDIA T4",
        16,
        None,
        8.1,
        f"NVIDIA T4 datasheet: {_SHEETS}tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    "5090": Hardware(
        "NVIDIA GeForce RTX 5090",
        32,
        209.5,
        104.8,
        "NVIDIA RTX Blackwell whitepaper, Appendix A: "
        f"{_IMAGES}aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
    ),
    "4090": Hardware(
        "NVIDIA GeForce RTX 4090",
        24,
        165.2,
        82.6,
        "NVIDIA Ada whitepaper, Appendix A: "
        f"{_IMAGES}aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf",
    ),
    "3090": Hardware(
        "NVIDIA GeForce RTX 3090",
        24,
        71,
        35.6,
        "NVIDIA GA102 whitepaper, Appendix A: "
        f"{_NVIDIA}content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    ),
    "mi300x": Hardware(
        "AMD Instinct MI300X",
        192,
        1307.4,
        163.4,
        "AMD Instinct MI300X data sheet: "
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
    ),
    # The paper counts cores, two to a chip: 123 TFLOP/s and 32 GiB are halved.
    "tpu-v3": Hardware(
        "TPU v3 core",
        16,
        61.5,
        None,
        "Google Cloud, TPU v3, half a chip: https://cloud.google.com/tpu/docs/v3",
    ),
}

HARDWARE_ALIASES = {"a100": "a100-80gb", "v100": "v100-32gb"}  # where a name leaves the memory open


def find_hardware(name: str) -> Hardware:
    """Find the device of a name, in any case; raise ConfigError with the nearest name."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key == "cpu":
        raise ConfigError(
            "--gpu cpu: no peak says how fast a CPU trains; measure images per second in a short "
            "run, and give --measured in place of --gpu"
        )
    key = HARDWARE_ALIASES.get(key, key.removeprefix("rtx-"))
    if key not in HARDWARE:
        hint = did_you_mean(key, HARDWARE) or f"; choose from {', '.join(HARDWARE)}"
        raise ConfigError(f"--gpu {name}: not in the table of hardware{hint}")
    return HARDWARE[key]


def choose_hardware_precision(hardware: Hardware | None, asked: PrecisionChoice) -> Precision:
    """Choose bf16 if the hardware has it; raise ConfigError if it lacks the one asked for."""
    if asked == "auto":
        return "bf16" if hardware and hardware.bf16 else "fp32"
    if hardware and asked == "bf16" and hardware.bf16 is None:
        raise ConfigError(
            f"--precision bf16: {hardware.name} has no bf16; leave it out, or say fp32"
        )
    return asked


def get_peak_flops(hardware: Hardware, precision: Precision) -> float:
    """Return the peak in FLOP/s; raise ConfigError if the table has none."""
    peak = hardware.bf16 if precision == "bf16" else hardware.fp32
    if peak is None:
        raise ConfigError(
            f"--precision {precision}: the table has no such peak of {hardware.name}; "
            "give --measured, or leave --precision out"
        )
    return peak * 1e12
