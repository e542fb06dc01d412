"""How a run computes, where that is left open: precision and compiling; and why."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from patchwords.device import Device, PrecisionName
from patchwords.train.choice import ResolvedSetting
from patchwords.train.config import CompileMode, FinetuneConfig

MIN_STEPS_TO_COMPILE = 2_000  # steps: fewer do not make up for the minute that it takes first


def resolve_machine_settings(
    config: FinetuneConfig, device: Device, steps: int
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    """Decide what "auto" comes to on this device, and say why."""
    compiling, why = resolve_compile_mode(config.machine.compile, device, steps)
    choices = [
        ResolvedSetting(
            "device", device.type, "asked for" if config.machine.device != "auto" else "found"
        ),
        ResolvedSetting(
            "precision", device.precision, explain_precision(config.machine.precision, device)
        ),
        ResolvedSetting("compile", compiling, why),
    ]
    return replace(config, machine=replace(config.machine, compile=compiling)), choices


def explain_precision(asked: PrecisionName, device: Device) -> str:
    if asked != "auto":
        return "asked for"
    where = "processor" if device.type == "cpu" else "GPU"
    if device.bf16:
        return f"of matrix products: this {where} multiplies bfloat16 faster"
    return f"of matrix products: this {where} has no fast bfloat16"


def resolve_compile_mode(asked: CompileMode, device: Device, steps: int) -> tuple[CompileMode, str]:
    """On a GPU it fuses what lies between the products; on a CPU that is a small share."""
    if asked != "auto":
        return asked, "asked for"
    if device.type == "cpu":
        return "no", "on a CPU it gains a tenth at most, and takes up to a minute first"
    if steps < MIN_STEPS_TO_COMPILE:
        return "no", f"{steps:,} steps are too few to make up for the minute that it takes first"
    if find_spec("triton") is None:
        return "no", "triton, which writes the kernels, is not installed"
    return "yes", "the layers, which takes a minute at the first step"
