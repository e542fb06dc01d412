"""The record of a run: metrics.jsonl for programs, TensorBoard events for curves."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    """The record that a process keeps beside the main one: none."""

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
