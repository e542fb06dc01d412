"""Processes of their own, for what one process cannot measure twice: its start and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A process ended badly; the text is the last line that it said."""


def run(words: Sequence[object]) -> tuple[float, str]:
    """-> wall-clock seconds of `python WORDS`, and what it printed; raises Failed."""
    command = [sys.executable, *map(str, words)]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.perf_counter() - started
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise Failed(f"{' '.join(command[1:])}: exit code {done.returncode}: {said}")
    return took, done.stdout


def ask(module: str, words: Sequence[object]) -> Any:
    """The last line that a module of ours prints, which is JSON."""
    _, said = run(("-m", f"benchmarks.{module}", *words))
    return json.loads(said.strip().splitlines()[-1])
