"""The program without POSIX: locks, workers by spawn, memory, devices; and the same to the bit."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from stop_and_resume import SETTINGS

import patchwords as pw
from patchwords.cli import main
from patchwords.device import _read_windows_memory, choose_device, parse_vm_stat
from patchwords.errors import ConfigError
from patchwords.files import cache_folder
from patchwords.processes import START_METHOD_VARIABLE, check_main_guard, choose_start_method

HERE = Path(__file__).parent
WITHOUT_POSIX = HERE / "without_posix"


def run_without_posix(program: str, *words: object) -> str:
    """Run a program in a process that lacks what only POSIX has; -> what it printed."""
    path = os.pathsep.join([str(WITHOUT_POSIX), *sys.path])
    result = subprocess.run(
        [sys.executable, str(HERE / program), *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def make_photos(root: Path) -> Path:
    """Twelve noisy photos of two classes."""
    generator = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 255)):
        (root / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, level, (20, 22, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="takes away what Linux has")
def test_a_stopped_run_goes_on_without_posix_and_ends_the_same(tmp_path: Path) -> None:
    """Two spawned workers, a stop in the middle, no /dev/shm: the weights of an undisturbed run."""
    photos = make_photos(tmp_path / "photos")
    words = ("finetune", str(photos), *SETTINGS, "--workers", "0")
    assert main([*words, "--output", str(tmp_path / "whole")]) == 0
    out = run_without_posix("stop_and_resume.py", photos, tmp_path / "run", photos / "dark/0.png")
    assert json.loads(out.splitlines()[-1])["path"].endswith("0.png")
    ours, theirs = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "whole")
    )
    assert ours == theirs


def test_the_start_method_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_METHOD_VARIABLE, raising=False)
    monkeypatch.setattr(os, "fork", getattr(os, "fork", None), raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert choose_start_method() == "spawn"
    monkeypatch.setattr(sys, "platform", "linux")
    assert choose_start_method() == "fork"
    monkeypatch.setenv(START_METHOD_VARIABLE, "spawn")
    assert choose_start_method() == "spawn"
    monkeypatch.delattr(os, "fork")
    monkeypatch.delenv(START_METHOD_VARIABLE)
    assert choose_start_method() == "spawn"
    for method in ("fork", "forkserver"):
        monkeypatch.setenv(START_METHOD_VARIABLE, method)
        with pytest.raises(ConfigError, match="choose spawn, as this system has no fork"):
            choose_start_method()


def test_a_script_without_a_guard_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing marks a worker while it imports the main script."""
    check_main_guard()
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ConfigError, match="__main__"):
        pw.finetune("digits", workers=2)


def test_no_home_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("PATCHWORDS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(ConfigError, match="set PATCHWORDS_CACHE"):
        cache_folder()


def test_memory_by_vm_stat() -> None:
    """As macOS prints it: page size in the first line, counts with a full stop."""
    text = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                                3.\n"
        "Pages active:                           7000.\n"
        "Pages inactive:                           20.\n"
        "Pages speculative:                       100.\n"
    )
    assert parse_vm_stat(text) == 123 * 16384
    assert parse_vm_stat("") == 0


def test_memory_by_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of MEMORYSTATUSEX.ullAvailPhys and PROCESS_MEMORY_COUNTERS.PeakWorkingSetSize."""

    class Status(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_uint32) for name in ("dwLength", "dwMemoryLoad")),
            *((name, ctypes.c_uint64) for name in ("ullTotalPhys", "ullAvailPhys")),
            ("rest", ctypes.c_uint64 * 5),
        ]

    class Counters(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_uint32) for name in ("cb", "PageFaultCount")),
            ("PeakWorkingSetSize", ctypes.c_size_t),
            ("rest", ctypes.c_size_t * 7),
        ]

    def status(pointer: Any) -> int:
        here = ctypes.cast(pointer, ctypes.POINTER(Status)).contents
        assert here.dwLength == ctypes.sizeof(Status)
        here.ullAvailPhys = 11
        return 1

    def counters(process: Any, pointer: Any, length: int) -> int:
        here = ctypes.cast(pointer, ctypes.POINTER(Counters)).contents
        assert here.cb == length == ctypes.sizeof(Counters)
        here.PeakWorkingSetSize = 13
        return 1

    kernel = SimpleNamespace(GlobalMemoryStatusEx=status, K32GetProcessMemoryInfo=counters)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert (_read_windows_memory(process=False), _read_windows_memory(process=True)) == (11, 13)


def test_the_gpu_of_a_mac_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device mps: this machine has no"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for name in ("auto", "mps"):
        device = choose_device(name)  # type: ignore[arg-type]
        assert (device.type, device.precision) == ("mps", "fp32")
    assert choose_device("mps", "bf16").precision == "bf16"
    assert choose_device("cpu").type == "cpu"
