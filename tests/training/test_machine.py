"""Memory, signals and the record of a run: where training meets the machine."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from patchwords.device import choose_device, free_memory
from patchwords.errors import ConfigError
from patchwords.models.cost import estimate_activation_bytes
from patchwords.models.zoo import resolve_model
from patchwords.planning import memory
from patchwords.planning.memory import FREE_MEMORY_SHARE, choose_micro_batch
from patchwords.training.engine.signals import StopSignal, catch_stop_signals
from patchwords.training.logs.metrics_log import MetricsLogger, read_metrics

CPU = choose_device("cpu", "fp32")
VIT = resolve_model("ViT-S/16").config


@pytest.mark.parametrize("batch", [1, 2, 7, 10, 97, 512])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 96, 1000])
def test_micro_batch_of_parts_asked_for(batch: int, parts: int) -> None:
    micro = choose_micro_batch(VIT, batch, CPU, parts)
    made = -(-batch // micro)  # as many parts as were asked for, or as there can be
    assert made <= min(parts, batch)
    assert (made - 1) * micro < batch <= made * micro
    assert choose_micro_batch(VIT, batch, CPU, made) == micro  # config.yaml keeps the parts


@pytest.mark.parametrize("batch", [1, 7, 10, 97, 512])
@pytest.mark.parametrize("fit", [1, 3, 40, 1000])
def test_micro_batch_by_free_memory(batch: int, fit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = estimate_activation_bytes(VIT, fit) / FREE_MEMORY_SHARE
    monkeypatch.setattr(memory, "free_memory", lambda device: int(free) + 1)
    micro = choose_micro_batch(VIT, batch, CPU, "auto")
    assert micro <= fit
    assert micro > min(batch, fit) / 4  # halved, evened out, no smaller than that
    parts = -(-batch // micro)
    assert choose_micro_batch(VIT, batch, CPU, parts) == micro
    monkeypatch.setattr(memory, "free_memory", lambda device: 0)
    assert choose_micro_batch(VIT, batch, CPU, "auto") == 1


def test_free_memory() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory(torch.device("cpu")) <= pages


@pytest.mark.parametrize(
    ("limit", "used", "cache", "free"),
    [
        ("max", 0, 0, 4_000_000),
        ("3000000", 1_000_000, 0, 2_000_000),
        ("3000000", 2_900_000, 1_500_000, 1_600_000),  # files that were read, given up when needed
        ("9000000", 1_000_000, 0, 4_000_000),
        ("3000000", 3_500_000, 0, 0),
    ],
)
def test_free_memory_in_a_container(
    limit: str, used: int, cache: int, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    monkeypatch.setattr("patchwords.device.Path", lambda path: tmp_path / path.split("/")[-1])
    # kB are 1024 bytes, so the machine's own 4,000 kB are a little more.
    assert free_memory(torch.device("cpu")) == (4000 * 1024 if free == 4_000_000 else free)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_a_wish_and_the_second_an_order(number: int, code: int) -> None:
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(KeyboardInterrupt), catch_stop_signals() as stop:  # noqa: PT012
        assert stop() is None
        signal.raise_signal(number)
        assert stop() == code
        signal.raise_signal(number)
    assert {s: signal.getsignal(s) for s in before} == before


def test_in_another_thread_signals_are_left_alone() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with catch_stop_signals() as stop:
            found.append((stop(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(None, before)]
    assert StopSignal()() is None


def row(step: int, **values: object) -> dict[str, object]:
    return {"kind": "train", "step": step, "loss": 1 / (step + 1), **values}


def test_rows_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    journal = MetricsLogger(metrics, None)
    for step in (3, 5, 7):
        journal.write(row(step))
    journal.close()
    with metrics.open("a") as file:
        file.write('{"kind": "train", "ste')  # a kill in the middle of a row
    assert [r["step"] for r in read_metrics(metrics)] == [3, 5, 7]
    journal = MetricsLogger(metrics, 5)
    journal.write(row(7, loss=0.125))
    journal.close()
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(r["step"], r["loss"]) for r in rows] == [(3, 1 / 4), (5, 1 / 6), (7, 0.125)]
    MetricsLogger(metrics, None).close()  # killed before its first checkpoint: from the first step
    assert read_metrics(metrics) == []


def test_curves_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    journal = MetricsLogger(tmp_path / "metrics.jsonl", None)
    for step in (3, 5, 7):
        journal.write(row(step))
    journal.close()
    journal = MetricsLogger(tmp_path / "metrics.jsonl", 5)
    journal.write(row(7, loss=0.125))
    journal.write({"kind": "evaluation", "step": 7, "split": "validation", "accuracy": 0.5})
    journal.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["evaluation/accuracy", "train/loss"]
    curve = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert curve == [(3, 0.25), (5, pytest.approx(1 / 6)), (7, 0.125)]  # kept as float32


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        MetricsLogger(tmp_path / "file" / "metrics.jsonl", None)


def test_the_first_signal_says_at_once_what_will_happen() -> None:
    lines: list[str] = []
    with catch_stop_signals(lines.append) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop() == 130
        assert len(lines) == 1
    assert "this step ends first, and a checkpoint is written" in lines[0]
