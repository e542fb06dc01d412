"""The draw of a few images of each class."""

from __future__ import annotations

import numpy as np
import pytest

from patchwords.data.splits import draw_shots
from patchwords.errors import ConfigError, DataError

LABELS = np.array([7, 2, 7, 3, 2, 3, 7, 3, 3, 2, 7, 7, 2])  # 4 of class 2, 4 of 3, 5 of 7


def test_so_many_of_each_class_and_no_image_twice() -> None:
    for shots in (1, 3, 4):
        drawn = draw_shots(LABELS, shots, seed=5)
        assert LABELS[drawn].tolist() == [2] * shots + [3] * shots + [7] * shots
        assert len(set(drawn.tolist())) == 3 * shots


def test_a_function_of_the_seed_and_smaller_draws_begin_larger_ones() -> None:
    labels = np.repeat(np.arange(11), 31)
    assert draw_shots(labels, 13, 5).tolist() == draw_shots(labels, 13, 5).tolist()
    assert draw_shots(labels, 13, 5).tolist() != draw_shots(labels, 13, 6).tolist()
    large = draw_shots(labels, 13, 5).reshape(11, 13)
    assert draw_shots(labels, 3, 5).reshape(11, 3).tolist() == large[:, :3].tolist()


def test_the_draw_of_a_class_does_not_depend_on_the_other_classes() -> None:
    first = np.flatnonzero(LABELS == 7)
    alone = first[draw_shots(LABELS[first], 2, seed=3)]
    assert draw_shots(LABELS, 2, seed=3)[-2:].tolist() == alone.tolist()


def test_every_image_of_a_class_has_the_same_chance() -> None:
    labels = np.zeros(5, dtype=np.int64)
    counts = np.bincount([draw_shots(labels, 1, seed)[0] for seed in range(1000)], minlength=5)
    # 200 +- 12.6 each: 5 deviations
    assert (abs(counts - 200) < 63).all()


@pytest.mark.parametrize(
    ("labels", "shots", "message"),
    [
        (LABELS, 5, "5 shots: class 'c' has 4 training images; use 4 or fewer shots"),
        ([0, 0, 1], 2, "2 shots: class 'b' has 1 training image; use 1 or fewer"),
        ([0, -1, 0, -1], 1, "needs labels: 2 of 4 images have none"),
        ([], 1, "needs labels: 0 of 0 images"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(
    labels: list[int], shots: int, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        draw_shots(np.array(labels, dtype=np.int64), shots, 0, classes="abcdefgh")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_shots_are_refused() -> None:
    with pytest.raises(ConfigError, match="shots 0: it is a number of images per class"):
        draw_shots(LABELS, 0, 0)
