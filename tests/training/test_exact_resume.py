"""A run that is stopped and goes on, or has other workers, is the same run to the bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import VIT, Killed, assemble, config_of, go, go_on, killed_at, quiet

from patchwords.errors import ConfigError, Interrupted
from patchwords.training.restore import restore_latest_checkpoint
from patchwords.training.training_run import TrainingRun


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return go(assemble(tmp_path_factory.mktemp("whole"), config_of()))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def state_of(job: TrainingRun) -> dict[str, Any]:
    state = job.state.to_dict()
    del state["seconds"]
    return state


@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_and_continued_is_bit_equal(
    tmp_path: Path, uninterrupted: TrainingRun, workers: int
) -> None:
    with pytest.raises(Killed):
        go(assemble(tmp_path, config_of(workers)), killed_at(2))  # at 16; saved at 15
    job = go_on(tmp_path, config_of(workers))
    assert job.resumed_at == 15
    assert same(state_of(job), state_of(uninterrupted))
    assert comparable_rows(job) == comparable_rows(uninterrupted)


def test_stopped_before_the_first_checkpoint_starts_anew(
    tmp_path: Path, uninterrupted: TrainingRun
) -> None:
    first = assemble(tmp_path, config_of())
    with pytest.raises(Interrupted, match="go on with: patchwords finetune"):
        go(first, interrupted_before_a_save(first))
    job = go_on(tmp_path, config_of())
    assert job.resumed_at is None
    assert same(state_of(job), state_of(uninterrupted))
    assert comparable_rows(job) == comparable_rows(uninterrupted)  # no row is there twice


def interrupted_before_a_save(job: TrainingRun) -> Any:
    def evaluate(*args: Any) -> dict[str, Any]:
        for path in job.folder.checkpoints.glob("*/*"):
            path.unlink()
        for path in job.folder.checkpoints.glob("*"):
            path.rmdir()
        raise KeyboardInterrupt

    return evaluate


def test_another_split_of_the_work_is_bit_equal(tmp_path: Path, uninterrupted: TrainingRun) -> None:
    """Workers, and how often it is evaluated and saved, are the machine's business."""
    config = config_of(workers=1)
    machine = replace(config.machine, eval_every=7, save_every=24, log_every=3)
    job = go(assemble(tmp_path, replace(config, machine=machine)))
    assert same(state_of(job), state_of(uninterrupted))


def test_the_run_depends_on_the_seed(tmp_path: Path, uninterrupted: TrainingRun) -> None:
    job = go(assemble(tmp_path, replace(config_of(), seed=1)))
    assert not same(state_of(job)["model"], state_of(uninterrupted)["model"])


def test_a_checkpoint_of_another_model_or_other_data_is_refused(
    tmp_path: Path, uninterrupted: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = uninterrupted.folder, uninterrupted.config
    other = assemble(tmp_path, config_of(), VIT.with_settings(gelu="erf"))
    with pytest.raises(ConfigError, match="of another model: it differs in gelu"):
        restore_latest_checkpoint(other.state, other.start, folder, config, other.data, quiet(), 1)
    job = assemble(tmp_path / "same model", config_of())
    monkeypatch.setattr("patchwords.training.restore.fingerprint_dataset", lambda data: "other")
    with pytest.raises(ConfigError, match="is not as it was when the run began"):
        restore_latest_checkpoint(job.state, job.start, folder, config, job.data, quiet(), 1)


def comparable_rows(job: TrainingRun) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock measured, and the memory that was taken."""
    rows = [json.loads(line) for line in job.folder.metrics.read_text().splitlines()]
    clocks = {"seconds", "images_per_second", "data_wait", "batch_seconds", "utilisation", "memory"}
    return [{key: row[key] for key in row if key not in clocks} for row in rows]
