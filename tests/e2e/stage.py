"""What the whole-program tests act with: fabricated photos, and the program as a user calls it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Console

from patchwords.cli import main
from patchwords.cli.train import finetune
from patchwords.evaluation.probes.fewshot import measure_fewshot
from patchwords.training.logs.display import Display
from patchwords.training.run import train_model
from patchwords.training.training_run import TrainingRun

COLOURS = {"disc": (220, 60, 50), "square": (50, 190, 80), "stripe": (60, 80, 230)}
COUNTS = {"disc": 14, "square": 13, "stripe": 13}
# As quick as can be: one block, 16 tokens, three updates, nothing decoded elsewhere. On the CPU and
# in float32, so that the tests say the same on every machine.
TINY = (
    *("--model", "ViT-mu/4", "--image-size", "16", "--steps", "3", "--batch-size", "8"),
    *("--workers", "0", "--device", "cpu", "--precision", "fp32"),
)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error that is the user's."""
        assert self.code == 2, self
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("patchwords: "), self.err
        assert "Traceback" not in self.out, self.out
        return lines[0].removeprefix("patchwords: ")


def call(*words: object) -> Done:
    """`patchwords WORDS`, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # --help
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def done(*words: object) -> str:
    """As `call`, for a command that must succeed; -> what it printed."""
    result = call(*words)
    assert result.code == 0, result
    return result.out


def train_only(*words: object) -> TrainingRun:
    """`patchwords finetune WORDS` without the final evaluation and the report."""
    config = finetune.parse_finetune([str(word) for word in words])
    return train_model(config, Display(Console(file=io.StringIO())), measure_fewshot)


def start(*words: object) -> subprocess.Popen[str]:
    """`patchwords WORDS` as a process of its own, on one thread as the others."""
    return subprocess.Popen(
        [sys.executable, "-m", "patchwords", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def weights(run: Path) -> str:
    """Digest of the trained model's file."""
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def rows(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """metrics.jsonl, all of it or one kind of row; the last line may still be written."""
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [row for row in found if kind in (None, row["kind"])]


def snapshot(folder: Path) -> dict[str, str]:
    """Every file and folder below, and what is in it."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "a folder"
        )
        for path in sorted(folder.rglob("*"))
    }


def draw(name: str, number: int, size: int = 24) -> Image.Image:
    """A shape in its class's colour, somewhere on a noisy ground; no two are alike."""
    random = np.random.default_rng([sorted(COLOURS).index(name), number])
    image = Image.fromarray(random.integers(0, 70, (size, size + number % 3, 3), dtype=np.uint8))
    x, y = (int(v) for v in random.integers(1, size // 3, 2))
    box = (x, y, x + size // 2, y + size // 2)
    pen = ImageDraw.Draw(image)
    if name == "stripe":
        pen.line(box, COLOURS[name], width=4)
    else:
        (pen.ellipse if name == "disc" else pen.rectangle)(box, fill=COLOURS[name])
    return image


def make_photos(root: Path, counts: dict[str, int] | None = None, first: int = 0) -> Path:
    """A folder per class of small PNGs, 40 in all."""
    for name, count in (counts or COUNTS).items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            draw(name, number).save(root / name / f"{number:02d}.png")
    return root


def png(name: str, number: int) -> bytes:
    file = io.BytesIO()
    draw(name, number).save(file, "PNG")
    return file.getvalue()
