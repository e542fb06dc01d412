"""The bootstrap of macro F1 against scikit-learn and against drawing images one by one."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from patchwords.evaluation.metrics import bootstrap_macro_f1, macro_f1, percentile_interval

K = 5  # classes, of which the last but one has no image


def some_answers(n: int = 211, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Labels [n] of four of five classes, and the answers [2, n] of two models like each other."""
    random = np.random.default_rng(seed)
    labels = random.choice([0, 1, 2, 4], p=[0.5, 0.3, 0.17, 0.03], size=n)
    first = np.where(random.random(n) < 0.7, labels, random.integers(0, K, n))
    second = np.where(random.random(n) < 0.8, first, random.integers(0, K, n))
    return labels, np.stack([first, second])


def by_scikit_learn(labels: np.ndarray, answer: np.ndarray) -> float:
    present = np.unique(labels)
    return float(f1_score(labels, answer, labels=present, average="macro", zero_division=0))


def test_macro_f1_is_scikit_learns() -> None:
    labels, answers = some_answers()
    expected = [by_scikit_learn(labels, answer) for answer in answers]
    # float64: sums of a few numbers of order 1
    assert macro_f1(labels, answers, K).tolist() == pytest.approx(expected, rel=1e-12)


def test_resamples_are_spread_as_those_of_images_drawn_one_by_one() -> None:
    """Of both models and of their difference: the pairing is what makes it narrow."""
    labels, answers = some_answers()
    random = np.random.default_rng(0)
    by_image = []
    for _ in range(2000):
        places = np.concatenate(
            [random.choice(np.flatnonzero(labels == k), (labels == k).sum()) for k in (0, 1, 2, 4)]
        )
        by_image.append(macro_f1(labels[places], answers[:, places], K))
    slow = np.array(by_image)
    fast = bootstrap_macro_f1(labels, answers, K, resamples=4000)
    assert fast.shape == (4000, 2)
    for a, b in [
        (slow[:, 0], fast[:, 0]),
        (slow[:, 1], fast[:, 1]),
        (slow @ [-1, 1], fast @ [-1, 1]),
    ]:
        # 2,000 draws: the mean within four standard errors, the deviation within 8 %
        assert b.mean() == pytest.approx(a.mean(), abs=4 * a.std() * np.sqrt(1 / 2000 + 1 / 4000))
        assert b.std() == pytest.approx(a.std(), rel=0.08)
        assert percentile_interval(b) == pytest.approx(percentile_interval(a), abs=0.25 * a.std())


def test_classes_are_drawn_independently() -> None:
    """Four classes that are alike: had they one stream, they would rise and fall together."""
    labels = np.repeat(np.arange(4), 50)
    answer = np.where(np.arange(200) % 50 < 30, labels, (labels + 1) % 4)
    drawn = bootstrap_macro_f1(labels, answer[None], 4, resamples=4000)[:, 0]
    random = np.random.default_rng(0)
    right = random.binomial(50, 0.6, size=(4000, 4))  # of class k; 50 - right are taken for k + 1
    given = right + 50 - np.roll(right, 1, axis=1)
    expected = (2 * right / (50 + given)).mean(1)
    assert drawn.std() == pytest.approx(expected.std(), rel=0.08)  # 4,000 draws: 1.1 % each
    assert drawn.mean() == pytest.approx(expected.mean(), abs=0.003)


def test_every_class_keeps_its_images() -> None:
    """One image of a class, and right: in every resample it is there, so no F1 is ever 0."""
    labels = np.array([0] * 30 + [1])
    resampled = bootstrap_macro_f1(labels, labels[None], 2)
    assert resampled.min() == resampled.max() == 1.0


def test_the_same_answers_give_the_same_resamples_and_no_difference() -> None:
    labels, answers = some_answers()
    both = bootstrap_macro_f1(labels, answers[[0, 0]], K)
    assert np.array_equal(both[:, 0], both[:, 1])
    assert np.array_equal(both, bootstrap_macro_f1(labels, answers[[0, 0]], K))
    order = np.random.default_rng(1).permutation(len(labels))
    again = bootstrap_macro_f1(labels[order], answers[:, order][[0, 0]], K)
    assert np.array_equal(both, again)  # the images' order is no part of it
    assert not np.array_equal(both, bootstrap_macro_f1(labels, answers[[0, 0]], K, seed=1))


def test_percentiles() -> None:
    assert percentile_interval(np.arange(1001.0)) == (25.0, 975.0)
