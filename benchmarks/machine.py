"""The machine that a benchmark ran on, and the fastest that it multiplies matrices."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from patchwords.device import choose_device, cpu_name
from patchwords.planning.matmul_peak import measure_matmul_peak

PACKAGES = ("patchwords", "torch", "timm", "transformers", "openvino", "scikit-learn", "pillow")


def peak(precision: str, device: str = "cpu") -> float:
    """FLOP/s, measured here and now, once in a process."""
    return measure_matmul_peak(choose_device(device, precision))  # type: ignore[arg-type]


def describe() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "peak_fp32": peak("fp32"),
        "peak_bf16": peak("bf16"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def in_words(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in about["versions"].items() if found)
    return (
        f"{about['cpu']}, {about['threads']} threads; matrix products at most "
        f"{about['peak_fp32'] / 1e9:.0f} GFLOP/s in fp32 and {about['peak_bf16'] / 1e9:.0f} in "
        f"bf16; {versions}"
    )
