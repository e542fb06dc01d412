"""A trained model that a cell measures: loaded, with the images as its training divided them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchwords.studies.bench import StudyContext
from patchwords.studies.study import ENCODER, Trial

if TYPE_CHECKING:
    from patchwords.data.examples import DatasetSplits
    from patchwords.evaluate.subject import LoadedModel


def load_encoder_model(cell: Trial, bench: StudyContext) -> LoadedModel | None:
    """The model of the cell's encoder on its device; None where its training diverged."""
    from patchwords.device import choose_device
    from patchwords.evaluate.subject import load_model_on_device

    folder = bench.encoder(cell)
    if not folder.is_dir():
        return None
    return load_model_on_device(str(folder), choose_device(bench.device, bench.precision))


def load_encoder_data(cell: Trial, bench: StudyContext) -> DatasetSplits:
    """What the cell's encoder was trained on, and what was held out from it."""
    from patchwords.studies.training import build_training_config
    from patchwords.train.job import load_dataset_splits

    name = cell.settings[ENCODER]
    trainings = bench.scale.pretrainings(cell.seed + 1)
    [encoder] = [one for one in trainings if (one.name, one.seed) == (name, cell.seed)]
    return load_dataset_splits(build_training_config(encoder, bench))
