"""What the commands that measure a model have in common: where, on which images, into what."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchwords.device import DeviceName, InferencePrecision, PrecisionName

if TYPE_CHECKING:
    from patchwords.data.examples import DatasetSplits
    from patchwords.device import Device


@dataclass(frozen=True)
class InferenceOptions:
    """What it is computed on, where a model is only asked for its answers."""

    device: DeviceName = "auto"
    """where to compute"""
    precision: InferencePrecision = "fp32"
    """of matrix products; auto: bf16 where it is fast; int8: a CPU, after patchwords calibrate"""
    workers: int | None = None
    """processes that decode images; none given: as many as are useful"""

    def choose(self) -> Device:
        from patchwords.device import choose_device

        return choose_device(self.device, self.precision)


@dataclass(frozen=True)
class DeviceOptions(InferenceOptions):
    """What it is computed on."""

    precision: PrecisionName = "fp32"
    """of matrix products; auto: bf16 where it is fast"""


@dataclass(frozen=True)
class DataOptions:
    """How DATA is read."""

    image_column: str | None = None
    """column of a CSV or parquet that has the images"""
    label_column: str | None = None
    """column of a CSV or parquet that has the labels"""
    max_bad: float = 0.01
    """stop when more than this share of the images cannot be read"""

    def open(self, spec: str, need_labels: bool = True) -> DatasetSplits:
        from patchwords.data.open import open_data

        return open_data(
            spec,
            image_column=self.image_column,
            label_column=self.label_column,
            need_labels=need_labels,
        )


@dataclass(frozen=True)
class OutputOptions:
    """Where results go."""

    output: Path | None = None
    """write results.json, results.csv and figures into this new folder"""
    overwrite: bool = False
    """write over what is in --output"""
    json: bool = False
    """print everything as JSON"""

    def claim(self) -> None:
        """Make the folder, if there is to be one; before the work, as it may be taken."""
        claim_output_folder(self.output, self.overwrite)

    def give(
        self,
        results: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
        draw: Callable[[], Mapping[str, bytes]],
        show: Callable[[], None],
    ) -> None:
        """Write results, rows and figure where there is a folder; print as JSON, or show."""
        if self.output is not None:
            write_results(self.output, results, rows, draw())
        if self.json:
            print(json.dumps(results))
        else:
            show()


def claim_output_folder(folder: Path | None, overwrite: bool) -> Path | None:
    """An empty folder, or, if asked, one that is written over file by file; None for none."""
    from patchwords.errors import ConfigError
    from patchwords.files import explain_write_error

    if folder is None:
        return None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise ConfigError(f"--output {folder} exists; add --overwrite, or choose another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error
    return folder


def write_results(
    folder: Path,
    results: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    figure: Mapping[str, bytes],
) -> None:
    """results.json with everything, results.csv with the rows, and the files of the figure."""
    from patchwords.files import write_atomically

    text = json.dumps(results, indent=2, ensure_ascii=False)
    write_atomically(folder / "results.json", text + "\n")
    write_atomically(folder / "results.csv", format_csv(rows))
    for name, content in figure.items():
        write_atomically(folder / name, content)


def format_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a column for every key that a row has, in the order of their first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
