"""The command in several processes: what is said, how it stops, and how it comes back by itself."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ranks

from patchwords.commands import finetune
from patchwords.train.journal import read_rows

PATIENCE = 100.0  # seconds for processes to get somewhere; they need ten or so
WORDS = (
    *("digits", "--model", "ViT-mu/4", "--image-size", 16, "--batch-size", 32, "--steps", 60),
    *("--dropout", 0.1, "--ema", 0.9, "--mixup", 0.2, "--log-every", 1, "--eval-every", 30),
    *("--save-every", 7, "--device", "cpu", "--precision", "fp32", "--workers", 0),
)


def steps(run: Path) -> int:
    rows = read_rows(run / "metrics.jsonl")
    return int(rows[-1]["step"]) if rows else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def test_a_batch_that_does_not_divide_is_said_once(tmp_path: Path) -> None:
    words = ("-m", "patchwords", "finetune", *WORDS, "--batch-size", 33, "--output", tmp_path / "r")
    processes = ranks.start(2, words)
    said = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert said[0] == (
        "",
        "patchwords: --batch-size 33 is not a multiple of the 2 processes: take 32 or 34, or "
        "start 1 process\n",
    )
    assert said[1] == ("", "")
    assert not (tmp_path / "r").exists()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that one of them was told to end."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    processes = ranks.start(2, ("-m", "patchwords", "finetune", *WORDS, "--output", run))
    wait_for(lambda: steps(run) >= 9, processes[0])
    processes[1].send_signal(signal.SIGTERM)  # the one that does not write
    said = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [143, 143], said
    assert "go on with: torchrun --nproc-per-node 2 -m patchwords finetune" in said[0][1]
    assert said[0][1].count("\n") == 1
    assert said[1] == ("", "")
    return run


def test_a_signal_to_one_stops_all_after_a_checkpoint(stopped: Path) -> None:
    last = steps(stopped)
    assert 9 <= last < 60
    newest = max(path.name for path in (stopped / "checkpoints").iterdir())
    assert newest == f"step-{last:08d}"


def torchrun(*words: object) -> subprocess.Popen[str]:
    command = ("torch.distributed.run", "--standalone", "--nproc-per-node", 2, *words)
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def worker(parent: int, rank: int) -> int:
    """The process that torchrun runs as this rank; Linux tells."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in map(int, children):
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if b"RANK=%d" % rank in variables:
            return child
    raise AssertionError(children)


def test_torchrun_brings_a_killed_run_back(stopped: Path, tmp_path: Path) -> None:
    """And it ends as the one that was stopped and goes on, in two processes again."""
    run = tmp_path / "run"
    words = ("-m", "patchwords", "finetune", *WORDS)
    process = torchrun("--max-restarts", 1, *words, "--output", run, "--overwrite")
    wait_for(lambda: steps(run) >= 17, process)
    os.kill(worker(process.pid, 1), signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out, err)
    assert "going on after step" in out
    assert "Traceback" not in err, err
    assert (run / "report.html").is_file()
    processes = ranks.start(2, (*words, "--output", stopped, "--resume"))
    said = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert said[1] == ("", "")
    assert digest(run) == digest(stopped)
    ours, theirs = ([(r["kind"], r["step"], r["loss"]) for r in read_rows(r_ / "metrics.jsonl")] for r_ in (run, stopped))
    assert ours == theirs
    assert [r[1] for r in ours if r[0] == "train"] == list(range(1, 61))
