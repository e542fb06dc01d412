"""A killed process brings the run back by itself, where torchrun may start it anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ranks

from patchwords.train.journal import read_rows

PATIENCE = 120.0  # seconds for processes to get somewhere; they need ten or so


def steps(run: Path) -> int:
    rows = read_rows(run / "metrics.jsonl")
    return int(rows[-1]["step"]) if rows else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


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


def test_a_killed_run_comes_back_and_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ("-m", "patchwords", "finetune", *ranks.WORDS, "--output", run, "--overwrite")
    process = torchrun("--max-restarts", 1, *command)
    wait_for(lambda: steps(run) >= 17, process)
    os.kill(worker(process.pid, 1), signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out, err)
    assert "going on after step" in out
    assert "Traceback" not in err
    assert err.count("patchwords: process 0 of 2 has lost another one") == 1
    assert (run / "report.html").is_file()
    expected = ranks.play(tmp_path / "two", 2, ["undisturbed"])["undisturbed"][0]
    assert ranks.digest(run) == expected["sha256"]
    rows = [(row["kind"], row["step"], row["loss"]) for row in read_rows(run / "metrics.jsonl")]
    whole = read_rows(tmp_path / "two" / "undisturbed" / "metrics.jsonl")
    assert rows == [(row["kind"], row["step"], row["loss"]) for row in whole]
