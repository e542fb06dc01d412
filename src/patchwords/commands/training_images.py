"""The images that a model was trained on, or that a user names: where to look for the nearest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchwords.data.examples import DatasetSplits, ImageDataset

REMOTE_KINDS = {"stream", "hub"}  # kinds of data that are not fetched unless somebody asks for it


@dataclass(frozen=True)
class DataRequest:
    """Which data, in the words of a command."""

    source: str  # the model's, as the user named it
    flag: str  # that names data, for a message
    data: str | None = None  # none given: what the run says that it was made from
    image_column: str | None = None
    label_column: str | None = None

    def open(self) -> DatasetSplits | None:
        """The data; None where none are given, and the source says nothing of any.

        Raises DataError for data that cannot be read, or that are the run's and lie elsewhere.
        """
        from patchwords.data.open import open_data
        from patchwords.errors import DataError
        from patchwords.report.run import read_run_data
        from patchwords.train.run_folder import RunFolder

        data, settings = self.data, {}
        if data is None:
            if not RunFolder(Path(self.source)).config.is_file():
                return None
            contents = read_run_data(Path(self.source))
            recorded = contents.environment.get("data") or {}
            data, settings = recorded.get("source"), contents.config
            if not data:
                return None
            if recorded.get("kind") in REMOTE_KINDS:
                raise DataError(f"{data} lies elsewhere: say {self.flag} {data} to look there")
        return open_data(
            data,
            image_column=self.image_column or settings.get("image_column"),
            label_column=self.label_column or settings.get("label_column"),
            classes=settings.get("classes"),
            need_labels=False,
        )

    def training(self, data: DatasetSplits) -> tuple[ImageDataset, str]:
        """Its images to train on, and which those are; raises DataError where there are none."""
        from patchwords.evaluate.held_out import read_run_splits
        from patchwords.evaluate.nearest import select_training_images

        return select_training_images(data, read_run_splits(Path(self.source)))
