"""Metrics of a run: metrics.jsonl for programs, TensorBoard events for curves."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from patchwords.files import explain_write_error, write_atomically


class MetricsLogger:
    """Appends rows; rows after the checkpoint that a run goes on from are dropped first."""

    def __init__(self, metrics: Path, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.metrics = metrics
        step = resumed_at or 0  # None: stopped before its first checkpoint, or new
        rows = [row for row in read_metrics(metrics) if row["step"] <= step]
        write_atomically(metrics, "".join(f"{json.dumps(row)}\n" for row in rows))
        try:
            self.file = metrics.open("a", encoding="utf-8")
            folder = str(metrics.parent / "tensorboard")
            self.events = SummaryWriter(folder, purge_step=step + 1)
        except OSError as error:
            raise explain_write_error(error, metrics) from error

    def write(self, row: Mapping[str, Any]) -> None:
        """One row: `kind` ("train", "evaluation", "fewshot" or "note"), `step`, and numbers."""
        try:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
            for name, value in row.items():
                if isinstance(value, int | float) and name not in {"step", "images", "shots"}:
                    self.events.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        except OSError as error:
            raise explain_write_error(error, self.metrics) from error

    def close(self) -> None:
        self.file.close()
        self.events.close()


class NullLogger:
    """The record of a process that is not the main one: none."""

    def write(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def read_metrics(metrics: Path) -> list[dict[str, Any]]:
    """The rows that are whole: the last one may have been cut by a kill."""
    rows = []
    if metrics.exists():
        for line in metrics.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


SPIKE_WINDOW = 200  # losses that a loss is compared with
MIN_SPIKE_ROWS = 20  # fewer are too few to compare with
SPIKE_DEVIATIONS = 4.0  # above the median
MAD_TO_STD = 1.4826  # a normal deviation in median absolute deviations


class LossSpikeDetector:
    """Detects jumps of the training loss, from the losses in metrics.jsonl alone."""

    def __init__(self, losses: Iterable[float] = ()) -> None:
        """`losses` of the rows so far, where a run is resumed."""
        self.losses = deque(
            losses, maxlen=SPIKE_WINDOW + 2
        )  # a loss, the one before it, and its past

    def note(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """A "train" row -> a "note" row where a spike begins; None within and without one."""
        self.losses.append(row["loss"])
        losses = list(self.losses)
        height = compute_spike_height(losses)
        if height <= SPIKE_DEVIATIONS or compute_spike_height(losses[:-1]) > SPIKE_DEVIATIONS:
            return None
        usual = statistics.median(losses[-SPIKE_WINDOW - 1 : -1])
        above = f"{height:.3g} robust deviations above the median {usual:.3g}"
        return {
            "kind": "note",
            "step": row["step"],
            "epoch": row["epoch"],
            "about": "loss spike",
            "loss": row["loss"],
            "text": f"loss spike: {row['loss']:.3g}, {above}",
        }


def compute_spike_height(losses: Sequence[float]) -> float:
    """Robust deviations of the last loss above the median of up to 200 before it.

    The deviation is 1.4826 times the median absolute one, which a few spikes do not widen. 0 if
    there are too few losses, or most of them are equal.

    >>> compute_spike_height([1.0, 2.0, 3.0, 2.0] * 10 + [2.0 + 5 * 1.4826 * 0.5])
    5.0
    """
    past = losses[-SPIKE_WINDOW - 1 : -1]
    if len(past) < MIN_SPIKE_ROWS:
        return 0.0
    median = statistics.median(past)
    deviation = MAD_TO_STD * statistics.median(abs(loss - median) for loss in past)
    return (losses[-1] - median) / deviation if deviation else 0.0
