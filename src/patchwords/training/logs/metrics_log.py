"""Metrics of a run: metrics.jsonl, TensorBoard events, and notes on loss spikes."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from patchwords.files import explain_write_error, write_atomically


class MetricsLogger:
    """Appends rows to metrics.jsonl, after dropping those behind the resumed checkpoint."""

    def __init__(self, metrics: Path, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.metrics = metrics
        step = resumed_at or 0  # None: a new run, or one stopped before its first checkpoint
        rows = [row for row in read_metrics(metrics) if row["step"] <= step]
        write_atomically(metrics, "".join(f"{json.dumps(row)}\n" for row in rows))
        try:
            self.file = metrics.open("a", encoding="utf-8")
            folder = str(metrics.parent / "tensorboard")
            self.events = SummaryWriter(folder, purge_step=step + 1)
        except OSError as error:
            raise explain_write_error(error, metrics) from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row: `kind` ("train", "evaluation", "fewshot" or "note"), `step`, numbers."""
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
    """The logger of every process except the main one: it writes nothing."""

    def write(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def read_metrics(metrics: Path) -> list[dict[str, Any]]:
    """Read all complete rows; a kill may have cut the last one."""
    rows = []
    if metrics.exists():
        for line in metrics.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


# Loss spikes are a function of the losses in metrics.jsonl, so a resumed run knows the earlier ones.
SPIKE_WINDOW = 200  # rows that a loss is compared with
MIN_SPIKE_ROWS = 20  # fewer rows are not enough to tell
SPIKE_DEVIATIONS = 4.0  # above the median
SPIKE_RISE = 0.1  # and at least this share of the median: robust deviations alone can be tiny
FIRST_EPOCHS, FIRST_SPIKE_RISE = 2.0, 0.5  # at first classes come and go: only a jump counts
MAD_TO_STD = 1.4826  # a normal deviation in median absolute deviations


class LossSpikeDetector:
    """Detects where the loss of "train" rows jumps."""

    def __init__(self, losses: Iterable[float] = ()) -> None:
        """`losses`: those of the earlier rows of a resumed run."""
        # The last loss, the one before it, and the window of that.
        self.losses = deque(losses, maxlen=SPIKE_WINDOW + 2)

    def note(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a "note" row if a spike begins at this "train" row, else None."""
        self.losses.append(row["loss"])
        losses = list(self.losses)
        rise = FIRST_SPIKE_RISE if row["epoch"] < FIRST_EPOCHS else SPIKE_RISE
        if not is_spike(losses, rise) or is_spike(losses[:-1], rise):
            return None
        height = compute_spike_height(losses)
        median = statistics.median(losses[-SPIKE_WINDOW - 1 : -1])
        above = f"{height:.3g} robust deviations above the median {median:.3g}"
        return {
            "kind": "note",
            "step": row["step"],
            "epoch": row["epoch"],
            "about": "loss spike",
            "loss": row["loss"],
            "text": f"loss spike: {row['loss']:.3g}, {above}",
        }


def is_spike(losses: Sequence[float], rise: float) -> bool:
    """Return whether the last loss is far above the median before it, by more than `rise` of it."""
    if compute_spike_height(losses) <= SPIKE_DEVIATIONS:
        return False
    median = statistics.median(losses[-SPIKE_WINDOW - 1 : -1])
    return losses[-1] - median > rise * abs(median)


def compute_spike_height(losses: Sequence[float]) -> float:
    """Compute the robust deviations of the last loss above the median before it.

    The deviation is 1.4826 times the median absolute deviation of up to 200 losses, which a few
    spikes do not widen. 0 if there are too few losses to tell, or most of them are equal.

    >>> compute_spike_height([1.0, 2.0, 3.0, 2.0] * 10 + [2.0 + 5 * 1.4826 * 0.5])
    5.0
    """
    window = losses[-SPIKE_WINDOW - 1 : -1]
    if len(window) < MIN_SPIKE_ROWS:
        return 0.0
    median = statistics.median(window)
    deviation = MAD_TO_STD * statistics.median(abs(loss - median) for loss in window)
    return (losses[-1] - median) / deviation if deviation else 0.0
