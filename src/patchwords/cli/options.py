"""Options that several commands share: machine, data, output, feature cache."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from patchwords.device import DeviceName, InferencePrecision, PrecisionName
from patchwords.evaluation.probes.defaults import DEFAULT_CACHE_GIB
from patchwords.files import claim_output_folder

if TYPE_CHECKING:
    from patchwords.data.dataset import DatasetSplits
    from patchwords.device import Device
    from patchwords.evaluation.probes.cache import FeatureCache


@dataclass(frozen=True)
class TrainCommand:
    """What the commands that train take in addition to the settings of a run."""

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")] = ""
    """images to train on: folder, CSV, parquet, tar shards, hf:NAME or digits"""
    config: Path | None = None
    """YAML file with settings, such as config.yaml of a run; flags win over it; default: none"""
    json: bool = False
    """print the results as JSON, and progress to stderr"""


@dataclass(frozen=True)
class InferenceOptions:
    """Where to run a trained model."""

    section: ClassVar[str] = "Machine"

    device: DeviceName = "auto"
    """device to compute on; auto: a GPU if there is one"""
    precision: InferencePrecision = "fp32"
    """precision of matrix products; auto: bf16 where it is fast; int8: on a CPU, after `patchwords
    calibrate`"""
    workers: int | None = None
    """processes that decode images; 0: decode in this process; default: by the number of CPU cores
    """

    def choose(self) -> Device:
        from patchwords.device import choose_device

        return choose_device(self.device, self.precision)


@dataclass(frozen=True)
class DeviceOptions(InferenceOptions):
    """Where to run a model whose inner values are read, which int8 has not."""

    precision: PrecisionName = "fp32"
    """precision of matrix products; auto: bf16 where it is fast"""


@dataclass(frozen=True)
class DataOptions:
    """How to read DATA."""

    section: ClassVar[str] = "Data"

    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    label_column: str | None = None
    """column with the labels, in a CSV or parquet table; default: found by name and type"""
    max_bad: float = 0.01
    """stop if more than this share of the images cannot be read"""

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
    """Where to write results."""

    section: ClassVar[str] = "Output"

    output: Path | None = None
    """new folder for results.json, results.csv and figures; default: print only"""
    overwrite: bool = False
    """overwrite the files in --output"""
    json: bool = False
    """print the results as JSON"""

    def claim(self) -> None:
        """Make the output folder before the work, as it may exist."""
        claim_output_folder(self.output, self.overwrite)

    def give(
        self,
        results: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
        draw: Callable[[], Mapping[str, bytes]],
        show: Callable[[], None],
    ) -> None:
        """Write results, rows and figures to the folder; print them as JSON or as text."""
        if self.output is not None:
            write_results(self.output, results, rows, draw())
        if self.json:
            print(json.dumps(results))
        else:
            show()


def write_results(
    folder: Path,
    results: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    figure: Mapping[str, bytes],
) -> None:
    """Write results.json with everything, results.csv with the rows, and the figures."""
    from patchwords.files import write_atomically

    text = json.dumps(results, indent=2, ensure_ascii=False)
    write_atomically(folder / "results.json", text + "\n")
    write_atomically(folder / "results.csv", format_csv(rows))
    for name, content in figure.items():
        write_atomically(folder / name, content)


def format_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as CSV; columns are all keys, in the order of their first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class CacheOptions:
    """Where to keep computed features."""

    section: ClassVar[str] = "Feature cache"

    cache: str | None = None
    """folder where computed features are kept for the next command, or `none`; default: features/
    in $PATCHWORDS_CACHE, else ~/.cache/patchwords/features"""
    cache_size: float = DEFAULT_CACHE_GIB
    """disk budget of the feature cache in GiB; the least recently used features are deleted first
    """

    def open(self) -> FeatureCache | None:
        from patchwords.evaluation.probes.cache import open_feature_cache

        return open_feature_cache(self.cache, self.cache_size)
