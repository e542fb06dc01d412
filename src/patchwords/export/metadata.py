"""Metadata inside an exported file: class names and preprocessing, as strings.

An ONNX file holds the strings as `metadata_props`, OpenVINO's as `rt_info` under "patchwords".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, WeightsError
from patchwords.version import __version__

PRODUCER, METADATA_VERSION = "patchwords", 1
INPUT_NAME, OUTPUT_NAME = "images", "logits"  # of the graph
METADATA_KEYS = ("producer", "version", "architecture", "labels", "preprocess", "quantized")


@dataclass(frozen=True)
class ExportMetadata:
    """Class names, and the preprocessing of the input."""

    labels: tuple[str, ...]
    preprocess: Preprocess
    architecture: str | None = None  # the name that the model was created by
    quantized: str | None = None  # "int8" where the weights are rounded

    def to_strings(self) -> dict[str, str]:
        """Convert to strings; lists and tables become JSON in ASCII."""
        values = (
            f"{PRODUCER} {__version__}",
            str(METADATA_VERSION),
            self.architecture,
            json.dumps(self.labels),
            json.dumps(self.preprocess.to_dict()),
            self.quantized,
        )
        return {name: v for name, v in zip(METADATA_KEYS, values, strict=True) if v is not None}

    @classmethod
    def from_strings(cls, values: Mapping[str, str], file: str) -> ExportMetadata:
        """Parse the result of `to_strings`; raise WeightsError with the file's name."""
        if values.get("producer", "").partition(" ")[0] != PRODUCER:
            raise WeightsError(
                f"{file} was not written by patchwords export: it names neither classes nor "
                "preprocessing"
            )
        try:
            if int(values["version"]) > METADATA_VERSION:
                raise WeightsError(f"{file} is of a newer patchwords ({values['producer']})")
            labels = json.loads(values["labels"])
            if not isinstance(labels, list) or not all(isinstance(name, str) for name in labels):
                raise WeightsError(f"{file} is damaged: its labels are not a list of names")
            return cls(
                tuple(labels),
                Preprocess.from_dict(json.loads(values["preprocess"])),
                values.get("architecture"),
                values.get("quantized"),
            )
        except (ConfigError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise WeightsError(f"{file} is damaged: {error!r} in what it says of itself") from error
