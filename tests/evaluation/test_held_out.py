"""Which images a model may be judged on, and what their labels mean to it."""

from __future__ import annotations

import numpy as np
import pytest

from patchwords.data.dataset import ImageDataset
from patchwords.data.sources.digits import MemoryReader
from patchwords.errors import DataError
from patchwords.evaluation.held_out import map_to_model_labels


def examples(*labels: int) -> ImageDataset:
    rows = np.arange(len(labels))
    keys = [str(row) for row in rows]
    return ImageDataset(("ant", "bee", "cat"), np.array(labels), keys, rows, MemoryReader(()), rows)


def test_labels_are_matched_by_name_and_none_stays_none() -> None:
    known = map_to_model_labels(examples(0, 2, -1, 0), ("cat", "dog", "ant"), "photos")
    assert known.labels.tolist() == [2, 0, -1, 2]
    assert known.classes == ("cat", "dog", "ant")


def test_a_class_that_the_model_does_not_know_is_refused_where_it_has_images() -> None:
    with pytest.raises(DataError, match=r"photos: class 'bee' is not one of the model's"):
        map_to_model_labels(examples(0, 1), ("cat", "dog", "ant"), "photos")
