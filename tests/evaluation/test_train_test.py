"""What a probe learns from and what it is judged by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_frozen import digits

from patchwords.data.dataset import ALL, TEST, TRAIN, VALIDATION, DatasetSplits, ImageDataset
from patchwords.errors import DataError
from patchwords.evaluation.probes.features import limit_train_images, split_for_probe

Places = dict[tuple[str, int], str]


def data(*parts: str) -> DatasetSplits:
    """97 images of each name; a few are of each class, as digits come in turn."""
    whole = digits().splits[ALL]
    splits = {
        name: whole.select(range(97 * place, 97 * place + 97)) for place, name in enumerate(parts)
    }
    return replace(digits(), splits=splits)


def record(examples: ImageDataset, split: str) -> Places:
    return dict.fromkeys(zip(examples.keys, examples.sizes.tolist(), strict=True), split)


def test_the_division_of_the_data_is_kept() -> None:
    given = data(TRAIN, VALIDATION, TEST)
    pair = split_for_probe(given, {})
    assert pair.train.keys == given.splits[TRAIN].keys
    assert pair.test.keys == given.splits[TEST].keys
    assert pair.origin == "as the data are divided"


def test_validation_is_the_test_where_there_is_no_other() -> None:
    given = data(TRAIN, VALIDATION)
    pair = split_for_probe(given, {})
    assert pair.test.keys == given.splits[VALIDATION].keys
    assert "validation is the test" in pair.origin


@pytest.mark.parametrize("name", [ALL, TRAIN])
def test_what_is_not_divided_is_cut_by_the_seed(name: str) -> None:
    given = data(name)
    pairs = [split_for_probe(given, {}, seed) for seed in (0, 0, 1)]
    for pair in pairs:
        assert (len(pair.train), len(pair.test)) == (78, 19)
        assert {*pair.train.keys} | {*pair.test.keys} == {*given.splits[name].keys}
        assert pair.test.count_per_class().min() >= 1  # stratified
    assert pairs[0].test.keys == pairs[1].test.keys
    assert pairs[0].test.keys != pairs[2].test.keys
    assert pairs[2].origin == "20% of each class cut off for test, by seed 1"


def test_a_coincidence_is_no_record() -> None:
    """Another data set whose shards have the same names: a row in some hundreds is as long."""
    given = data(TRAIN, TEST)
    train = given.splits[TRAIN]
    assert split_for_probe(given, record(train.select([5, 50, 71]), VALIDATION)).origin == (
        "as the data are divided"
    )
    some = record(train.select(range(5)), VALIDATION)
    assert len(split_for_probe(given, some).train) == 97 - 5


def test_the_run_of_the_model_has_the_last_word() -> None:
    """Though the data are divided otherwise today, and have images that the run never saw."""
    given = data(ALL)
    whole = given.splits[ALL]
    trained, held, judged = (whole.select(range(a, b)) for a, b in ((0, 50), (50, 60), (60, 90)))
    recorded = {**record(trained, TRAIN), **record(held, VALIDATION), **record(judged, TEST)}
    pair = split_for_probe(given, recorded)
    assert pair.train.keys == trained.keys
    assert pair.test.keys == judged.keys
    assert pair.origin == "as the model's own run divided them"
    assert np.array_equal(pair.test.labels, judged.labels)
    divided = replace(given, splits={TRAIN: whole.select(range(55, 97)), TEST: trained})
    pair = split_for_probe(divided, recorded)
    assert {*pair.test.keys} == {*judged.keys}
    assert {*pair.train.keys} == {*trained.keys, *whole.keys[90:]}


def test_a_run_without_a_test_split_is_judged_by_validation() -> None:
    given = data(ALL)
    whole = given.splits[ALL]
    recorded = record(whole.select(range(60)), TRAIN)
    recorded |= record(whole.select(range(60, 97)), VALIDATION)
    pair = split_for_probe(given, recorded)
    assert pair.test.keys == whole.keys[60:]
    assert "validation is the test" in pair.origin


def test_the_record_of_another_data_set_says_nothing() -> None:
    given = data(TRAIN, TEST)
    pair = split_for_probe(given, {("elsewhere.png", 17): TRAIN})
    assert pair.test.keys == given.splits[TEST].keys
    # the same name and another length is another image
    key, size = given.splits[TEST].keys[0], int(given.splits[TEST].sizes[0])
    assert split_for_probe(given, {(key, size + 1): TRAIN}).origin == "as the data are divided"


def test_no_image_is_in_both_parts() -> None:
    for given in (data(ALL), data(TRAIN), data(TRAIN, TEST)):
        pair = split_for_probe(given, {})
        assert not {*pair.train.keys} & {*pair.test.keys}


def test_limit_takes_from_train_alone() -> None:
    pair = split_for_probe(data(TRAIN, TEST), {})
    some = limit_train_images(pair, np.array([5, 2]))
    assert some.train.keys == [pair.train.keys[5], pair.train.keys[2]]
    assert some.test is pair.test


def of_class(part: ImageDataset, *labels: int) -> ImageDataset:
    return part.select(np.flatnonzero(np.isin(part.labels, labels)))


def test_what_cannot_be_probed_is_one_line() -> None:
    splits = data(TRAIN, TEST).splits
    bare = replace(splits[TEST], labels=np.where(np.arange(97) == 13, -1, splits[TEST].labels))
    cases = {
        "1 of 97 images of test have no label; the first is": {TRAIN: splits[TRAIN], TEST: bare},
        "class '3' is in test and not in train": {
            TRAIN: of_class(splits[TRAIN], 1, 2),
            TEST: of_class(splits[TEST], 2, 3),
        },
        "train has one class only, '2'": {
            TRAIN: of_class(splits[TRAIN], 2),
            TEST: of_class(splits[TEST], 2),
        },
        "others to be judged by; there are 97 test": {TEST: splits[TEST]},
    }
    for line, found in cases.items():
        with pytest.raises(DataError, match=line) as caught:
            split_for_probe(replace(digits(), splits=found), {})
        assert "\n" not in str(caught.value)
