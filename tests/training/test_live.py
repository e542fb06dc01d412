"""The metrics beside the loss: they are exact under resume, and leave the training alone."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_run import Killed, assemble, config_of, digits, go, go_on, killed_at, quiet

from patchwords.data.dataset import TRAIN, VALIDATION, DatasetSplits
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.probes.fewshot import measure_fewshot
from patchwords.training import live_metrics
from patchwords.training import run as training
from patchwords.training.config import FinetuneConfig
from patchwords.training.data_setup import MAX_FEWSHOT_VALIDATION, select_fewshot_images
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.training_run import TrainingRun


def probed(every: int | None = 7, shots: int = 3) -> FinetuneConfig:
    config = config_of()
    machine = replace(config.machine, fewshot_every=every, fewshot_shots=shots)
    return replace(config, machine=machine)


def rows_of(job: TrainingRun, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_metrics(job.folder.metrics) if row["kind"] == kind]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return go(assemble(tmp_path_factory.mktemp("run"), probed()))


def test_the_metric_disturbs_nothing(tmp_path: Path, run: TrainingRun) -> None:
    """Dropout, stochastic depth, augmentation and the running average are all at work."""
    without = go(assemble(tmp_path, probed(every=None)))
    assert rows_of(without, "fewshot") == []
    for mine, other in (
        (run.state.model.state_dict(), without.state.model.state_dict()),
        (run.state.average.weights, without.state.average.weights),
    ):
        for name, value in mine.items():
            assert torch.equal(value, other[name]), name
    of_batches = {row["step"]: row["loss"] for row in rows_of(run, "train")}
    assert of_batches == {row["step"]: row["loss"] for row in rows_of(without, "train")}


def test_its_rows(run: TrainingRun) -> None:
    rows = rows_of(run, "fewshot")
    assert [row["step"] for row in rows] == [7, 14, 21, 24]  # and at the end
    assert [row["epoch"] for row in rows] == [run.plan.epoch(step) for step in (7, 14, 21, 24)]
    assert {(row["shots"], row["images"]) for row in rows} == {(3, 23)}
    events = b"".join(p.read_bytes() for p in (run.folder.path / "tensorboard").glob("*"))
    assert b"fewshot/accuracy" in events
    assert b"fewshot/shots" not in events


def test_it_measures_the_weights_that_would_be_kept(tmp_path: Path) -> None:
    """The running average."""
    measured: dict[str, torch.Tensor] = {}

    def keep(model: torch.nn.Module, *args: Any) -> dict[str, Any]:
        measured.update({name: value.clone() for name, value in model.state_dict().items()})
        return {"accuracy": 0.5, "images": 3}

    job = assemble(tmp_path, probed(every=24))
    training.train_to_end(job, quiet(), keep)
    own = job.state.model.state_dict()
    for name, value in job.state.average.weights.items():
        assert torch.equal(measured[name], value)
    assert not torch.equal(measured["embed.weight"], own["embed.weight"])


def test_continued_it_is_the_same(tmp_path: Path, run: TrainingRun) -> None:
    with pytest.raises(Killed):
        go(assemble(tmp_path, probed()), killed_at(2))  # at 16; saved at 15, probed at 7 and 14
    job = go_on(tmp_path, probed())
    assert job.resumed_at == 15
    assert rows_of(job, "fewshot") == rows_of(run, "fewshot")


def test_the_images_are_a_function_of_the_seed() -> None:
    config = probed()
    train, held_out = select_fewshot_images(config, digits())
    assert np.bincount(train.labels).tolist() == [3] * 10
    assert len(held_out) == 23
    again, _ = select_fewshot_images(config, digits())
    other, _ = select_fewshot_images(replace(config, seed=4), digits())
    assert train.keys == again.keys != other.keys
    assert set(train.keys) <= set(digits().splits[TRAIN].keys)
    assert select_fewshot_images(probed(every=None), digits()) is None


def test_of_many_held_out_images_some_are_drawn() -> None:
    data = digits()
    many = data.splits[VALIDATION].select([i % 23 for i in range(3_001)])
    many = replace(many, keys=[str(i) for i in range(3_001)])
    splits = {**data.splits, VALIDATION: many}
    data = replace(data, splits=splits)
    (_, held_out), (_, again) = (select_fewshot_images(probed(), data) for _ in range(2))
    assert held_out.keys == again.keys
    assert len(held_out) == MAX_FEWSHOT_VALIDATION
    assert len(set(held_out.keys)) == MAX_FEWSHOT_VALIDATION
    assert sum(int(key) > 1_500 for key in held_out.keys) > 900  # from all over


def without_labels(data: DatasetSplits) -> DatasetSplits:
    train = data.splits[TRAIN]
    bare = replace(train, labels=np.full(len(train), -1))
    return replace(data, splits={**data.splits, TRAIN: bare})


def without_validation(data: DatasetSplits) -> DatasetSplits:
    return replace(data, splits={TRAIN: data.splits[TRAIN]})


@pytest.mark.parametrize(
    ("change", "shots", "error", "message"),
    [
        (without_labels, 1, DataError, "--fewshot-every: few-shot evaluation needs labels: 97 of"),
        (without_validation, 1, ConfigError, "--fewshot-every needs validation images"),
        (lambda data: data, 50, DataError, "--fewshot-every: 50 shots: class '.' has . training"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    change: Any, shots: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        select_fewshot_images(probed(shots=shots), change(digits()))
    assert "\n" not in str(caught.value)


def test_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = replace(probed(shots=5_000), output=str(tmp_path / "run"), model="ViT-mu/4")
    with pytest.raises(DataError, match="5000 shots"):
        training.train_model(config, quiet(), measure_fewshot)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["fewshot_every", "fewshot_shots"])
def test_settings_out_of_range(name: str) -> None:
    config = probed()
    config = replace(config, machine=replace(config.machine, **{name: 0}))
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} 0 must be greater"):
        config.check()


def test_spikes_are_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold so low that noise passes it: in the file, on the screen, in TensorBoard."""
    monkeypatch.setattr("patchwords.training.logs.metrics_log.MIN_SPIKE_ROWS", 5)
    monkeypatch.setattr("patchwords.training.logs.metrics_log.SPIKE_DEVIATIONS", 0.5)
    for rise in ("SPIKE_RISE", "FIRST_SPIKE_RISE"):
        monkeypatch.setattr(f"patchwords.training.logs.metrics_log.{rise}", 0.0)
    whole = assemble(tmp_path / "whole", config_of())
    screen = io.StringIO()
    training.train_to_end(whole, Display(Console(file=screen)))
    expected = rows_of(whole, "note")
    before, after = (
        [row for row in expected if (row["step"] <= 15) == early] for early in (True, False)
    )
    assert before
    assert after
    shown = [line for line in screen.getvalue().splitlines() if "loss spike" in line]
    assert shown == [f"step {row['step']}/24  {row['text']}" for row in expected]

    with pytest.raises(Killed):
        go(assemble(tmp_path / "part", config_of()), killed_at(2))  # at 16, saved at 15
    job = go_on(tmp_path / "part", config_of())
    assert job.resumed_at == 15
    assert rows_of(job, "note") == expected


def test_a_note_is_a_row_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Always:
        def __init__(self, losses: Any) -> None:
            pass

        def note(self, row: Any) -> dict[str, Any]:
            return {"kind": "note", "step": row["step"], "text": "a word", "loss": 1.5}

    monkeypatch.setattr(live_metrics, "LossSpikeDetector", Always)
    job = go(assemble(tmp_path, config_of()))
    lines = [json.loads(line) for line in job.folder.metrics.read_text().splitlines()]
    assert [row["step"] for row in lines if row["kind"] == "note"] == list(range(1, 25))
