"""Images to judge by: those that no run was trained on, and subsets that keep the classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from subjects import CLASSES, examples_of

from patchwords.data.dataset import ALL, TEST, TRAIN, VALIDATION, DatasetSplits
from patchwords.errors import ConfigError
from patchwords.evaluation.robustness.perturbation import (
    choose_robustness_images,
    draw_stratified_subset,
    merge_run_splits,
)


def data(splits: dict[str, range]) -> DatasetSplits:
    whole = examples_of(60)
    return DatasetSplits(
        "made-up", "folder", CLASSES, {name: whole.select(part) for name, part in splits.items()}
    )


def record(places: dict[str, range]) -> dict[tuple[str, int], str]:
    return {(f"{i}.png", i + 1): split for split, part in places.items() for i in part}


DIVIDED = {TRAIN: range(40), VALIDATION: range(40, 45), TEST: range(45, 60)}


def test_the_datas_own_test_images_where_no_run_is_known() -> None:
    chosen = choose_robustness_images(data(DIVIDED), [{}, {}], training=True)
    assert chosen.split == TEST
    assert chosen.judged.keys == [f"{i}.png" for i in range(45, 60)]
    assert chosen.training is not None
    assert chosen.training.keys == [f"{i}.png" for i in range(40)]
    assert chosen.notes == ()


def test_what_any_run_was_trained_on_is_left_out() -> None:
    first = record({TRAIN: range(30), TEST: range(30, 60)})
    second = record({TRAIN: range(20, 40), VALIDATION: range(40, 45), TEST: range(45, 60)})
    for records in ([first, second], [second, first]):
        chosen = choose_robustness_images(data({ALL: range(60)}), records, training=True)
        assert chosen.judged.keys == [f"{i}.png" for i in range(45, 60)]
        assert chosen.training is not None
        assert chosen.training.keys == [f"{i}.png" for i in range(40)]
    assert merge_run_splits([{("a", 1): TEST}, {("a", 1): TRAIN}, {}]) == {("a", 1): TRAIN}


def test_without_training_images_half_of_the_others_is_learned_on() -> None:
    chosen = choose_robustness_images(data({ALL: range(60)}), [{}], training=True)
    assert chosen.training is not None
    judged, learned = {*chosen.judged.keys}, {*chosen.training.keys}
    assert not judged & learned
    assert judged | learned == {f"{i}.png" for i in range(60)}
    assert chosen.training.count_per_class().tolist() == [10, 10, 10]
    assert "30 are learned on, and 30 judged by" in chosen.notes[0]
    assert len(choose_robustness_images(data({ALL: range(60)}), [{}]).judged) == 60


@pytest.mark.parametrize("most", [1, 7, 20, 39])
def test_a_subset_keeps_the_shares_of_classes_and_is_always_the_same(most: int) -> None:
    uneven = examples_of(60).select([i for i in range(60) if i % 3 == 0 or i % 2 == 0])
    assert uneven.count_per_class().tolist() == [20, 10, 10]
    found = draw_stratified_subset(uneven, most)
    assert len({*found.tolist()}) == most
    assert (np.diff(found) > 0).all()
    shares = np.array([20, 10, 10]) * most / 40
    assert (abs(uneven.select(found).count_per_class() - shares) < 1).all()
    assert np.array_equal(found, draw_stratified_subset(uneven, most))


def test_images_without_a_label_are_a_class() -> None:
    bare = replace(examples_of(10), labels=np.array([-1] * 4 + [1] * 6))
    assert (draw_stratified_subset(bare, 5) < 4).sum() == 2


def test_a_subset_is_said() -> None:
    chosen = choose_robustness_images(data(DIVIDED), [{}], most=6)
    assert len(chosen.judged) == 6
    assert chosen.notes == ("6 of 15 images, each class by its share",)
    assert choose_robustness_images(data(DIVIDED), [{}], most=15).notes == ()
    with pytest.raises(ConfigError, match="--images 0"):
        choose_robustness_images(data(DIVIDED), [{}], most=0)
