"""Objectives and tasks from outside of src/: found by name, trained, killed, resumed, evaluated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
TINY = (
    *("digits", "--model", "ViT-mu/4", "--image-size", "16", "--steps", "24", "--batch-size", "16"),
    *("--train-images", "64", "--device", "cpu", "--precision", "fp32", "--log-every", "1"),
    *("--eval-every", "8", "--save-every", "5", "--seed", "1", "--lr", "0.001"),
)
RUNS = {
    "two views": ("pretrain", "--objective", "two_views:TwoViews"),
    "dense": ("finetune", "--task", "bright_pixels:BrightPixels"),
}
CLOCKS = {"seconds", "images_per_second", "data_wait", "batch_seconds", "utilisation", "memory"}


def start(*words: object) -> subprocess.Popen[str]:
    """`patchwords WORDS` in a process of its own, in the folder of the objectives."""
    return subprocess.Popen(
        [sys.executable, "-m", "patchwords", *map(str, words)],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def rows(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock measured; its last line may still be written."""
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCKS} for line in lines]


def weights(run: Path) -> dict[str, torch.Tensor]:
    (path,) = (run / "checkpoints").glob("*24")
    return torch.load(path / "state.pt", weights_only=True)["model"]


@pytest.fixture(scope="module", params=RUNS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    words = RUNS[request.param]
    folder = tmp_path_factory.mktemp("whole") / "run"
    return words, folder, finish(start(*words, *TINY, "--workers", 0, "--output", folder))


def test_it_trains_and_is_evaluated(whole: Any) -> None:
    words, folder, out = whole
    metric = "agreement" if "pretrain" in words else "iou"
    losses = [row["loss"] for row in rows(folder) if row["kind"] == "train"]
    assert len(losses) == 24
    # A teacher that moves moves the loss; a mask does not.
    assert sum(losses[-6:]) < (2 if metric == "agreement" else 0.7) * sum(losses[:6])
    evaluations = [row for row in rows(folder) if row["kind"] == "evaluation"]
    assert [row["step"] for row in evaluations] == [8, 16, 24]
    assert all(0 <= row[metric] <= 1 and row["images"] > 0 for row in evaluations)
    result = json.loads((folder / "objective.json").read_text())
    assert result["primary_metric"] == metric
    assert result["images"] > 0
    assert f"{metric} {result[metric]:.4g}" in out


def test_what_moves_after_a_step_is_in_the_checkpoint(whole: Any) -> None:
    words, folder, _ = whole
    if "finetune" in words:
        assert weights(folder)["decoder.weight"].any()
        return
    state = weights(folder)
    assert state["center"].any()
    name = "encoder.blocks.0.mlp.fc1.weight"
    assert not torch.equal(state[f"teacher.{name}"], state[f"backbone.{name}"])


def test_killed_and_resumed_is_the_same_to_the_bit(whole: Any, tmp_path: Path) -> None:
    words, folder, _ = whole
    killed = tmp_path / "run"
    process = start(*words, *TINY, "--workers", 1, "--output", killed)
    until = time.monotonic() + 600
    while len(rows(killed)) < 12 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 12 <= len(rows(killed)) < len(rows(folder)) + 1
    finish(start(words[0], "digits", "--output", killed, "--resume"))
    expected, resumed = weights(folder), weights(killed)
    assert expected.keys() == resumed.keys()
    for name, value in expected.items():
        assert torch.equal(resumed[name], value), name
    assert rows(killed) == rows(folder)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--objective", "masket"), "package.module:Name; did you mean 'masked'?"),
        (("--objective", "no_such_module:Mine"), "there is no module no_such_module"),
        (("--objective", "two_views:StudentTeacher"), "has no objective StudentTeacher"),
        (("--objective", "two_views:TwoViews", "--grad-accum", 2), "is over the whole batch"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: Any, line: str, tmp_path: Path) -> None:
    process = start("pretrain", *words, *TINY, "--output", tmp_path / "run")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2, err
    assert line in err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
