"""A trained model that a cell measures: loaded, with the images as its training divided them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchwords.studies.bench import Bench
from patchwords.studies.study import ENCODER, Cell

if TYPE_CHECKING:
    from patchwords.data.examples import Data
    from patchwords.evaluate.subject import Subject


def subject_of(cell: Cell, bench: Bench) -> Subject | None:
    """The model of the cell's encoder on its device; None where its training diverged."""
    from patchwords.device import choose_device
    from patchwords.evaluate.subject import load_subject

    folder = bench.encoder(cell)
    if not folder.is_dir():
        return None
    return load_subject(str(folder), choose_device(bench.device, bench.precision))


def data_of_encoder(cell: Cell, bench: Bench) -> Data:
    """What the cell's encoder was trained on, and what was held out from it."""
    from patchwords.studies.training import config_of
    from patchwords.train.job import load_data

    name = cell.settings[ENCODER]
    trainings = bench.scale.pretrainings(cell.seed + 1)
    [encoder] = [one for one in trainings if (one.name, one.seed) == (name, cell.seed)]
    return load_data(config_of(encoder, bench))
