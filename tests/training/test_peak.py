"""Utilisation: operations per second relative to the measured peak of the device."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import VIT, assemble, config_of, go

from patchwords.device import choose_device, peak_memory
from patchwords.models.build import build_model
from patchwords.models.cost import count_forward_macs
from patchwords.planning import matmul_peak as peak
from patchwords.planning.matmul_peak import (
    measure_fastest_matmul,
    measure_matmul_peak,
    seconds_per_image_at_peak,
)
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.training_run import TrainingRun

CPU = choose_device("cpu", "fp32")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SECONDS_PER_SIDE", 0.0)


def seconds_of_peak(side: int) -> float:
    """Seconds that the measured product takes by its FLOP/s: two a multiplication."""
    return 2 * side**3 / measure_fastest_matmul(side, torch.device("cpu"), torch.float32)


@pytest.mark.usefixtures("quick")
def test_the_fastest_way_to_multiply_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (lambda: time.sleep(0.5)), (lambda: time.sleep(0.2))
    monkeypatch.setattr(peak, "_matmul_variants", lambda a, b: iter([slow, fast]))
    assert 0.2 <= seconds_of_peak(17) < 0.4


def test_the_best_of_several_products_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    naps = iter([0.3, 0.3, 0.01, 0.3])  # the first one, which sets up libraries, is not measured
    monkeypatch.setattr(peak, "SECONDS_PER_SIDE", 0.5)
    monkeypatch.setattr(
        peak, "_matmul_variants", lambda a, b: iter([lambda: time.sleep(next(naps, 0.3))])
    )
    assert 0.01 <= seconds_of_peak(17) < 0.3


@pytest.mark.usefixtures("quick")
def test_measuring_leaves_the_random_generator_alone() -> None:
    before = torch.get_rng_state()
    assert measure_fastest_matmul(67, torch.device("cpu"), torch.bfloat16) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_the_peak_is_measured_once_for_each_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def measured(side: int, device: torch.device, dtype: torch.dtype) -> float:
        seen.append((side, dtype))
        return 1e9 * side

    monkeypatch.setattr(peak, "measure_fastest_matmul", measured)
    peak._measure_matmul_peak.cache_clear()
    try:
        assert measure_matmul_peak(CPU) == measure_matmul_peak(CPU) == 1e9 * 2048
        assert measure_matmul_peak(replace(CPU, bf16=True)) == 1e9 * 2048
        assert seen == [
            (side, dtype) for dtype in (torch.float32, torch.bfloat16) for side in (512, 1024, 2048)
        ]
    finally:
        peak._measure_matmul_peak.cache_clear()


def test_training_takes_six_operations_for_each_multiplication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peak, "measure_matmul_peak", lambda device: 1e6)
    model = build_model(VIT)
    assert seconds_per_image_at_peak(model, CPU) == pytest.approx(6 * count_forward_macs(VIT) / 1e6)
    for parameter in model.head.parameters():  # a learner may train another head
        parameter.requires_grad_(False)
    assert seconds_per_image_at_peak(model, CPU) == pytest.approx(6 * count_forward_macs(VIT) / 1e6)
    model.encoder.blocks[0].requires_grad_(False)
    assert seconds_per_image_at_peak(model, CPU) is None


def job_with(folder: Path, train: str) -> TrainingRun:
    config = config_of()
    recipe = replace(config.recipe, steps=6, train=train, ema=None)
    machine = replace(config.machine, log_every=2)
    return assemble(folder, replace(config, recipe=recipe, machine=machine))


def test_a_row_has_the_utilisation_and_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak, "measure_matmul_peak", lambda device: 1e9)
    rows = read_metrics(go(job_with(tmp_path, "all")).folder.metrics)
    rows = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [2, 4, 5, 6]
    for row in rows:
        # images per second times operations per image, over the peak
        expected = row["images_per_second"] * 6 * count_forward_macs(VIT) / 1e9
        assert row["utilisation"] == pytest.approx(expected)
        assert row["memory"] > 50e6  # torch alone takes more


def test_frozen_weights_have_no_utilisation(tmp_path: Path) -> None:
    rows = read_metrics(go(job_with(tmp_path, "head")).folder.metrics)
    assert not any("utilisation" in row for row in rows)
    assert all("memory" in row for row in rows if row["kind"] == "train")


def test_memory_is_the_peak_of_the_process() -> None:
    before = peak_memory(torch.device("cpu"))
    block = np.ones(200 << 20, dtype=np.uint8)
    during = peak_memory(torch.device("cpu"))
    del block
    assert peak_memory(torch.device("cpu")) == pytest.approx(during, rel=0.01)
    resident = os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])
    assert resident <= during
    assert during >= before
