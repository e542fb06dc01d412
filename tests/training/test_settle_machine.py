"""Resolution of "auto" for precision and compile, with reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from patchwords.device import Device
from patchwords.training import plan as machine
from patchwords.training.config import CompileMode, FinetuneConfig
from patchwords.training.plan import resolve_compile_mode, resolve_machine_settings

CPU, GPU = Device(torch.device("cpu"), bf16=False), Device(torch.device("cuda"), bf16=True)


@pytest.mark.parametrize(
    ("requested", "device", "steps", "compiling", "why"),
    [
        ("yes", CPU, 1, "yes", "asked for"),
        ("no", GPU, 100_000, "no", "asked for"),
        ("auto", CPU, 100_000, "no", "on a CPU"),
        ("auto", GPU, 1_999, "no", "1,999 steps are too few"),
        ("auto", GPU, 2_000, "yes", "the layers"),
    ],
)
def test_whether_layers_are_compiled(
    requested: CompileMode,
    device: Device,
    steps: int,
    compiling: CompileMode,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    resolved, reason = resolve_compile_mode(requested, device, steps)
    assert resolved == compiling
    assert why in reason


def test_without_triton_a_gpu_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    resolved, reason = resolve_compile_mode("auto", GPU, 100_000)
    assert (resolved, "triton" in reason) == ("no", True)


def test_every_setting_has_a_reason() -> None:
    config, choices = resolve_machine_settings(FinetuneConfig(), GPU, steps=7)
    assert config.machine.compile == "no"
    assert [(choice.name, choice.value) for choice in choices] == [
        ("device", "cuda"),
        ("precision", "bf16"),
        ("compile", "no"),
    ]
    assert "this GPU multiplies bfloat16 faster" in choices[1].why
    config = FinetuneConfig()
    config = replace(config, machine=replace(config.machine, device="cpu", precision="fp32"))
    assert [choice.why for choice in resolve_machine_settings(config, CPU, 7)[1][:2]] == [
        "asked for"
    ] * 2
    assert "no fast bfloat16" in resolve_machine_settings(FinetuneConfig(), CPU, 7)[1][1].why
