"""Where the cells of a study are carried out: their folders, their data, their machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchwords.device import DeviceName, PrecisionName
from patchwords.studies.study import ENCODER, Scale, Trial
from patchwords.train.run_folder import RunFolder

RESULT_FILE, TEST_RESULT_FILE = "result.json", "judged.json"  # in the folder of a cell


@dataclass(frozen=True)
class StudyContext:
    """What a cell needs beside itself; it travels to other processes."""

    folder: Path  # of the study
    scale: Scale
    data: str | None
    transfer: str | None = None
    device: DeviceName = "auto"
    precision: PrecisionName = "auto"

    def place(self, cell: Trial) -> Path:
        """The folder of a cell."""
        return self.folder / ("shared" if cell.shared else "cells") / cell.folder

    def run(self, cell: Trial) -> Path:
        """The run folder of a cell that is a training."""
        return self.place(cell) / "run"

    def encoder(self, cell: Trial) -> Path:
        """The model of the pre-training that a cell starts from."""
        name = cell.settings[ENCODER]
        return RunFolder(self.run(Trial(name, cell.seed, {}, shared=True))).model

    @property
    def shared(self) -> Path:
        """What several cells use, made by whoever needs it: pre-trained encoders, features."""
        return self.folder / "shared"
