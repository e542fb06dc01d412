"""Fields, opening and output of the commands that measure trained models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import tyro

from patchwords.cli.options import CacheOptions, DataOptions, DeviceOptions, OutputOptions
from patchwords.errors import ConfigError, PatchwordsError

if TYPE_CHECKING:
    from patchwords.data.dataset import DatasetSplits
    from patchwords.evaluation.predictions import LoadedModel
    from patchwords.evaluation.results import Results
    from patchwords.evaluation.robustness.perturbation import RobustnessImages

# One frozen model, by its features.


@dataclass(frozen=True)
class FrozenModelCommand:
    """Fields of the commands that measure the features of a frozen model."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """run folder, model folder, file of weights or hub id"""
    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """labelled images: a folder, CSV, parquet, tar shards, hf:NAME or digits"""
    results: OutputOptions = field(default_factory=OutputOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)
    read: DataOptions = field(default_factory=DataOptions)

    def measure(
        self,
        function: Callable[..., Results],
        rows: str,
        draw: Callable[[dict[str, Any]], Mapping[str, bytes]],
        show: Callable[[dict[str, Any], Path | None], None],
    ) -> int:
        """Call a function of the library with the command's settings; write and print its results.

        Args:
            function: takes the fields of the command by name.
            rows: part of the results that results.csv holds.
            draw: makes the figures of the results.
            show: prints the results, given the output folder.
        """
        from patchwords.distributed import is_main_process

        values = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        settings = {name: value for name, value in values.items() if not is_dataclass(value)}
        groups = vars(self.read) | vars(self.where) | vars(self.cache)
        with claim_output(self.results):
            results = function(**settings, **groups).to_dict()
        if is_main_process():
            self.results.give(
                results,
                results[rows],
                lambda: draw(results),
                lambda: show(results, self.results.output),
            )
        return 0


@contextlib.contextmanager
def claim_output(results: OutputOptions) -> Iterator[None]:
    """Make the output folder before the work; remove it again if the user's input is wrong."""
    is_new = results.output is not None and not results.output.exists()
    results.claim()
    try:
        yield
    except PatchwordsError:
        if is_new and results.output is not None:
            with contextlib.suppress(OSError):  # another process has removed it
                results.output.rmdir()
        raise


def describe_image_counts(results: Mapping[str, Any]) -> list[str]:
    """Describe the test images, and those that could not be read."""
    lines = [f"{results['test']:,} images of test; {results['divided']}"]
    if results["skipped"]:
        first = results["skipped"][0]
        lines.append(
            f"{len(results['skipped'])} images cannot be read, the first: {first['path']} "
            f"({first['reason']})"
        )
    return lines


# Several models, on the same images.


@dataclass(frozen=True)
class ComparedModels:
    """Several models, and the images that all of them are measured on."""

    subjects: list[LoadedModel]
    data: DatasetSplits
    chosen: RobustnessImages
    unrecorded: list[str]  # models whose training images are unknown

    def describe(self) -> dict[str, Any]:
        """Describe models and images for results.json."""
        from patchwords.evaluation.held_out import describe_evaluated_model

        return {
            "models": [
                {"name": subject.name, **describe_evaluated_model(subject.source, subject.device)}
                for subject in self.subjects
            ],
            "data": self.data.source,
            "split": self.chosen.split,
            "unrecorded": self.unrecorded,
            "notes": list(self.chosen.notes),
        }

    def summarise(self) -> list[str]:
        """List which images were measured, and warnings."""
        return [
            f"{len(self.chosen.judged):,} images of {self.chosen.split}, {self.data.source}",
            *self.chosen.notes,
            *(
                f"warning: the training images of {name} are not recorded"
                for name in self.unrecorded
            ),
        ]


ModelsAndData: TypeAlias = Annotated[
    tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL [MODEL ...] DATA")
]


@dataclass(frozen=True)
class ComparedModelsCommand:
    """Fields of the commands that measure several models on the same images."""

    models_and_data: ModelsAndData
    """run folders or model folders, then the images"""
    results: OutputOptions = field(default_factory=OutputOptions)
    read: DataOptions = field(default_factory=DataOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)

    @contextlib.contextmanager
    def load(
        self, verb: str, images: int | None, *, training: bool = False, need_classes: bool = True
    ) -> Iterator[ComparedModels]:
        """Load the models, and choose `images` images that none of their runs was trained on.

        Under torchrun the processes measure together until this context ends.
        """
        from patchwords.distributed import join_process_group
        from patchwords.evaluation.held_out import read_run_splits
        from patchwords.evaluation.predictions import (
            load_model_on_device,
            refuse_duplicate_models,
        )
        from patchwords.evaluation.robustness.perturbation import choose_robustness_images

        models, spec = split_models_and_data(self.models_and_data, verb)
        device = self.where.choose()
        with join_process_group(device.type == "cuda"):
            data = self.read.open(spec, need_labels=False)
            refuse_duplicate_models(models)
            subjects = [load_model_on_device(name, device, self.where.workers) for name in models]
            if need_classes:
                for subject in subjects:
                    subject.source.require_classes(subject.name)
            recorded = [read_run_splits(Path(name), data) for name in models]
            chosen = choose_robustness_images(data, recorded, images, training=training)
            unrecorded = [name for name, record in zip(models, recorded, strict=True) if not record]
            yield ComparedModels(subjects, data, chosen, unrecorded)


def split_models_and_data(words: Sequence[str], verb: str) -> tuple[list[str], str]:
    """Split MODEL [MODEL ...] DATA; raises ConfigError if one of them is missing."""
    if len(words) < 2:
        given = f"found only {words[0]!r}" if words else "found none"
        raise ConfigError(
            f"patchwords {verb} takes MODEL [MODEL ...] DATA, {given}: patchwords {verb} "
            "runs/vit runs/resnet photos/"
        )
    return list(words[:-1]), words[-1]
