"""What the command line asks of every benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

QUICK_SECONDS = 0.01
SECONDS = 0.3  # of a repeat at least: shorter ones measure the clock and the scheduler


@dataclass(frozen=True)
class Asked:
    """`quick` tries the code on tiny models, and its numbers mean nothing."""

    quick: bool = False
    data: Path | None = None  # a folder of photos, in a folder for each class
    weights: str = "patchwords:cifar10-small"  # of the model whose answers are compared on photos
    rounds: int | None = None
    output: Path = Path("runs/benchmarks")

    @property
    def seconds(self) -> float:
        return QUICK_SECONDS if self.quick else SECONDS

    def rounds_or(self, default: int) -> int:
        return self.rounds or (2 if self.quick else default)
