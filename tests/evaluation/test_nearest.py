"""The nearest images: by plain numpy, by hand, and among which of the images of a data set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_frozen import blobs, digits

from patchwords.data.dataset import ALL, TEST, TRAIN, VALIDATION, DatasetSplits, ImageDataset
from patchwords.errors import DataError
from patchwords.evaluation.probes import knn as neighbours
from patchwords.evaluation.probes.knn import (
    find_nearest_images,
    median_random_similarity,
    select_training_images,
    subsample_examples,
)

PHOTOS, SEARCHED = blobs(11, 13, 7, seed=1)[0], blobs(103, 13, 7, seed=0)[0]


@pytest.mark.parametrize("block", [2**15, 17], ids="{} images at a time".format)
def test_the_nearest_are_those_of_plain_numpy(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(neighbours, "NEIGHBOUR_BLOCK_SIZE", block)
    a, b = (x.astype(np.float64) for x in (PHOTOS, SEARCHED))
    every = (a @ b.T) / np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    cosines, places = find_nearest_images(PHOTOS, SEARCHED, 5)
    assert places.tolist() == np.argsort(-every, axis=1)[:, :5].tolist()
    np.testing.assert_allclose(cosines, -np.sort(-every, axis=1)[:, :5], atol=1e-6)  # float32
    assert (cosines.dtype, places.dtype) == (np.float32, np.int64)


def test_of_fewer_images_it_gives_all() -> None:
    cosines, places = find_nearest_images(PHOTOS, SEARCHED[:3], 7)
    assert cosines.shape == (11, 3)
    assert np.sort(places, axis=1).tolist() == [[0, 1, 2]] * 11


@pytest.mark.parametrize("side", [0, 1])
def test_a_diverged_model_is_refused(side: int) -> None:
    broken = [PHOTOS.copy(), SEARCHED.copy()]
    broken[side][2, 3] = np.inf
    with pytest.raises(DataError, match="not finite"):
        find_nearest_images(*broken, 3)


def test_by_chance_no_image_is_a_pair_with_itself() -> None:
    assert median_random_similarity(4.0 * np.eye(3)) == 0.0
    assert median_random_similarity(np.array([[3.0, 0.0], [0.0, 2.0]], np.float16)) == 0.0
    assert median_random_similarity(np.ones((5, 7)) * np.arange(1, 6)[:, None]) == pytest.approx(
        1.0, abs=1e-6
    )
    assert median_random_similarity(np.ones((1, 7))) is None


def test_by_chance_is_the_median_over_all_pairs() -> None:
    rows = SEARCHED.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    every = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    found = median_random_similarity(SEARCHED)
    assert found == median_random_similarity(SEARCHED)
    # 2,000 draws: the share of pairs below their median has a standard error of 1.1 %
    assert (every < found).mean() == pytest.approx(0.5, abs=0.045)


def data(*parts: str) -> DatasetSplits:
    """31 images of each name."""
    whole = digits().splits[ALL]
    return replace(
        digits(),
        splits={name: whole.select(range(31 * i, 31 * i + 31)) for i, name in enumerate(parts)},
    )


def record(examples: ImageDataset, split: str) -> dict[tuple[str, int], str]:
    return dict.fromkeys(zip(examples.keys, examples.sizes.tolist(), strict=True), split)


@pytest.mark.parametrize(
    ("parts", "chosen", "origin"),
    [
        ((TEST, TRAIN, VALIDATION), TRAIN, "the training split"),
        ((ALL,), ALL, "all of them, as they are not divided"),
    ],
)
def test_which_images_are_searched(parts: tuple[str, ...], chosen: str, origin: str) -> None:
    given = data(*parts)
    found, said = select_training_images(given, {})
    assert (list(found.keys), said) == (list(given.splits[chosen].keys), origin)


def test_the_record_of_the_run_decides() -> None:
    given = data(ALL)
    whole = given.splits[ALL]
    known = record(whole.select(range(9)), TEST) | record(whole.select(range(9, 20)), TRAIN)
    found, said = select_training_images(given, known)
    assert (list(found.keys), said) == (list(whole.keys[9:20]), "those that the run trained on")
    # but not that of a run on other images
    strange = {(f"other {key}", size): split for (key, size), split in known.items()}
    found, said = select_training_images(given, strange)
    assert (len(found), said) == (31, "all of them, as they are not divided")
    # what it held out is never searched
    found, said = select_training_images(given, record(whole.select(range(9)), TEST))
    assert (list(found.keys), said) == (list(whole.keys[9:]), "those that the run never saw")


def test_a_coincidence_is_no_record() -> None:
    """A single image of 93 has the name and the length of one that the run trained on."""
    given = data(TEST, TRAIN, VALIDATION)
    found, said = select_training_images(given, record(given.splits[TEST].select([3]), TRAIN))
    assert (list(found.keys), said) == (list(given.splits[TRAIN].keys), "the training split")


def test_data_to_test_on_are_one_line() -> None:
    given = data(TEST, VALIDATION)
    line = r"^digits: has no training images to search; there are 31 test, 31 validation$"
    with pytest.raises(DataError, match=line):
        select_training_images(given, {})
    with pytest.raises(DataError, match=r"there are 31 test$"):
        select_training_images(data(ALL), record(data(ALL).splits[ALL], TEST))


def test_of_many_the_same_are_drawn_each_time() -> None:
    whole = data(ALL).splits[ALL]
    few = subsample_examples(whole, 7)
    assert list(few.keys) == list(subsample_examples(whole, 7).keys)
    places = [whole.keys.index(key) for key in few.keys]
    assert places == sorted(set(places))
    assert places != list(range(7))
    assert subsample_examples(whole, 31) is whole
