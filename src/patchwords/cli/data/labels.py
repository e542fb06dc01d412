"""`patchwords doctor --labels`: images whose label looks wrong, by the features of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from patchwords.cli.options import CacheOptions
from patchwords.device import DeviceName
from patchwords.errors import ConfigError
from patchwords.report.format import format_percent, format_probability

if TYPE_CHECKING:
    from patchwords.data.dataset import DatasetSplits
    from patchwords.evaluation.probes.label_errors import LabelErrors

DEFAULT_SOURCE = "patchwords:cifar10-small"
MAX_PRINTED = 5


@dataclass(frozen=True)
class LabelOptions:
    """The check of labels by features."""

    section: ClassVar[str] = "Labels"

    labels: tuple[str, ...] | None = None
    """check the labels by the features of this model: run folder, model folder, file of weights, hub
    id or published name; without a value: the small encoder in the box. Better features find
    more; default: off"""
    output: Path | None = None
    """new folder for labels.html with pictures of the labels that look most wrong, and labels.csv
    with all images; default: print only"""
    seed: int = 0
    """seed of the five folds"""
    device: DeviceName = "auto"
    """device to compute features on; auto: a GPU if there is one"""

    def validate(self, cache: CacheOptions) -> None:
        """Raise ConfigError for settings that need --labels, and for several models."""
        if self.labels is None:
            if self != LabelOptions() or cache != CacheOptions():
                raise ConfigError("--output, --seed, --device and --cache need --labels")
        elif len(self.labels) > 1:
            raise ConfigError(f"--labels {' '.join(self.labels)}: give one model")

    def find(
        self, data: DatasetSplits, cache: CacheOptions, workers: int | None
    ) -> LabelErrors | None:
        """Check the labels and write the page and the table; None without --labels."""
        if self.labels is None:
            return None
        from patchwords.device import choose_device
        from patchwords.evaluation.predictions import load_model_on_device
        from patchwords.evaluation.probes.label_errors import find_label_errors
        from patchwords.report.label_errors import write_label_errors
        from patchwords.training.logs.progress import show_progress

        source = self.labels[0] if self.labels else DEFAULT_SOURCE
        loaded = load_model_on_device(source, choose_device(self.device, "fp32"), workers)
        with show_progress("computing features") as progress:
            errors = find_label_errors(
                loaded, data, cache.open(), seed=self.seed, progress=progress
            )
        if self.output is not None:
            write_label_errors(self.output, errors, data.source)
        return errors

    def describe(self, errors: LabelErrors) -> list[str]:
        """Describe the most suspicious labels, in lines."""
        lines = [
            f"labels: {errors.suspicious:,} of {len(errors.suspects):,} look wrong to a probe on the "
            f"features of {errors.model}, which predicts {format_percent(errors.accuracy)} of the "
            "labels of images that it has not seen"
        ]
        lines += [
            f"  {suspect.path}: labelled {suspect.label}, looks like {suspect.suggested} "
            f"({format_probability(suspect.p_suggested)})"
            for suspect in errors.suspects[:MAX_PRINTED]
            if suspect.suspicious
        ]
        if errors.left_out:
            lines.append(
                f"  {errors.left_out:,} images were not judged: not readable, without a label, or "
                "alone in their class"
            )
        if self.output is None:
            lines.append("  Add --output labels for pictures and a list of all images")
        else:
            lines.append(
                f"pictures: {self.output / 'labels.html'}; all: {self.output / 'labels.csv'}"
            )
        return lines
