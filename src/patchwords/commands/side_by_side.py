"""What the commands that set models side by side share: MODEL [MODEL ...] DATA, and their words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchwords.errors import ConfigError

if TYPE_CHECKING:
    from patchwords.data.examples import DatasetSplits
    from patchwords.device import Device
    from patchwords.evaluate.robustness.disturbance import NamedProgress
    from patchwords.evaluate.robustness.images import RobustnessImages
    from patchwords.evaluate.subject import LoadedModel


@dataclass(frozen=True)
class ComparedModels:
    """The models, and the images that all of them are shown."""

    subjects: list[LoadedModel]
    data: DatasetSplits
    chosen: RobustnessImages
    unrecorded: list[str]  # models whose training images nobody knows

    def describe(self) -> dict[str, Any]:
        """For results.json."""
        from patchwords.evaluate.final import describe_evaluated_model

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

    def in_words(self) -> list[str]:
        """What was measured on, for a person."""
        beware = "beware: what it was trained on is not recorded with"
        return [
            f"{len(self.chosen.judged):,} images of {self.chosen.split}, {self.data.source}",
            *self.chosen.notes,
            *(f"{beware} {name}" for name in self.unrecorded),
        ]


def split_models_and_data(words: Sequence[str], verb: str) -> tuple[list[str], str]:
    """The models, and the data behind them; raises ConfigError where one of them is missing."""
    if len(words) < 2:
        found = f"found {words[0]!r} alone" if words else "found none"
        raise ConfigError(
            f"patchwords {verb} takes MODEL [MODEL ...] DATA, {found}: patchwords {verb} "
            "runs/vit runs/resnet photos/"
        )
    return list(words[:-1]), words[-1]


def load_compared_models(
    models: Sequence[str],
    data: DatasetSplits,
    device: Device,
    images: int | None,
    *,
    workers: int | None = None,
    training: bool = False,
    need_classes: bool = True,
) -> ComparedModels:
    """Load the models, and choose the images that none of their runs was trained on."""
    from patchwords.evaluate.held_out import read_run_splits
    from patchwords.evaluate.robustness.images import choose_robustness_images
    from patchwords.evaluate.subject import load_model_on_device, refuse_duplicate_models

    refuse_duplicate_models(models)
    subjects = [load_model_on_device(name, device, workers) for name in models]
    if need_classes:
        for subject in subjects:
            subject.source.require_classes(subject.name)
    recorded = [read_run_splits(Path(name)) for name in models]
    chosen = choose_robustness_images(data, recorded, images, training=training)
    unrecorded = [name for name, record in zip(models, recorded, strict=True) if not record]
    return ComparedModels(subjects, data, chosen, unrecorded)


@contextmanager
def show_progress_in_turn() -> Iterator[NamedProgress]:
    """A progress bar (or plain lines) on stderr for one thing after the other."""
    from patchwords.commands.doctor_summary import Report, show_progress
    from patchwords.distributed import is_main_process

    reports: dict[str, Report] = {}
    with ExitStack() as stack:

        def tell(what: str, done: int, total: int) -> None:
            if not is_main_process():
                return
            if what not in reports:
                stack.close()  # the one before
                reports.clear()
                reports[what] = stack.enter_context(show_progress(what))
            reports[what](done, total)

        yield tell
